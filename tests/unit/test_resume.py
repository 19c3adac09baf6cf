"""To which version of silver a stream goes back after raw was restored."""

from __future__ import annotations

from lineage_assets.lineage.commits import Commit
from lineage_assets.lineage.record import TableInput
from lineage_assets.spark.resume import common_cut
from tests.unit.written import record


def raw(*restores: tuple[int, int], newest: int, first: int = 0) -> list[Commit]:
    """Versions of raw, newest first; of some it is said to which version they went back."""
    back = dict(restores)
    return [Commit(one, 0, "", None, back.get(one)) for one in range(newest, first - 1, -1)]


def silver(count: int) -> list[Commit]:
    """Version 0 makes the table, version n has consumed version n of raw."""
    made = [Commit(0, 0, "", record("silver/clicks", "create", None))]
    for one in range(1, count + 1):
        consumed = TableInput("raw/clicks", "id", (one, one + 1))
        made.append(Commit(one, 0, "", record("silver/clicks", tables=[consumed])))
    return made[::-1]


def test_silver_goes_back_to_before_it_read_what_raw_gave_up() -> None:
    assert common_cut(raw(newest=8), silver(8)) == 8
    assert common_cut(raw((9, 5), newest=9), silver(8)) == 5
    assert common_cut(raw((9, 5), newest=12), silver(12)) == 5
    assert common_cut(raw(newest=8), silver(9)) == 8, "a version that raw never had"
    assert common_cut([], []) is None


def test_a_log_that_was_shortened_is_no_reason_to_go_back() -> None:
    assert common_cut(raw(newest=8, first=6), silver(8)) == 8
    assert common_cut(raw((9, 7), newest=9, first=6), silver(8)) == 7
