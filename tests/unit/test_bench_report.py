"""What the bench says of its measurements: figures against their limits, lines, plots; costs by pairs.

Belongs here: bench/report.py, svg.py, overhead.py's sums, visible.py, session.py's choice of parts. Does not belong here:
measuring (tests/integration/test_bench.py).
"""

from __future__ import annotations

import doctest
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import dagster as dg
import pytest

from lineage_assets.bench import overhead as overhead_module
from lineage_assets.bench import session, svg
from lineage_assets.bench import visible as visible_module
from lineage_assets.bench.batch import Batch
from lineage_assets.bench.catch_up import CatchUp, Run
from lineage_assets.bench.latency import Latency
from lineage_assets.bench.meter import Stored, Usage
from lineage_assets.bench.overhead import BARE, FULL, Overhead, Turn, rotated, variants
from lineage_assets.bench.report import Results, figures, lines, plots, to_json, write_plots
from lineage_assets.bench.session import Wanted, require_possible
from lineage_assets.bench.streams import LINEAGE_PARTS, StreamOptions
from lineage_assets.bench.visible import Visible, watching
from lineage_assets.errors import ContractError, FatalError
from lineage_assets.settings import Settings

MEASURED = Latency(
    rate=1_400,
    seconds=300,
    latency={"count": 3, "mean_ms": 1_000, "p50_ms": 900, "p95_ms": 2_000, "p99_ms": 2_999, "max_ms": 4_000},
    histogram_ms={"900": 2, "2999": 1},
    arrived=[{"version": 5, "seen_ms": 61_000, "rows": 3, "youngest_ms": 900, "oldest_ms": 2_999}],
    from_ms=60_000,
    expected=3,
    complete=True,
    load={"records": 3},
    reader_cpu_s=0.1,
    usage=Usage(
        300.0, {"spark": 40.0, "stream": 2.0, "kafka": 9.0}, {"spark": 2_000, "spark/java": 1_900, "dagster": 0}
    ),
    events=1_000_000,
    bytes={"raw/c": Stored(30_000_000, 1_000_000, 500_000), "silver/c": Stored(20_000_000, 0, 500_000)},
    commits={"raw/c": 299, "silver/c": 298},
    maintenance={},
    visible={
        "count": 298,
        "p50_ms": 30_000,
        "p95_ms": 60_000,
        "p99_ms": 65_000,
        "max_ms": 66_000,
        "materializations": 6,
    },
)
BATCH = Batch(1_000_000, 2, 30.0, 25.0, {"raw/c": Stored(28_000_000, 0, 10_000)})


def run(steady: float) -> Run:
    return Run(3_000_000, 40.0, steady - 5_000, steady, 15.0, 6)


CATCH_UP = CatchUp(3_000_000, None, [run(1.0), run(60_000), run(64_000)], [run(1.0), run(130_000), run(110_000)])


def turns(**by_variant: list[float]) -> list[Turn]:
    """Turns by variant; the first of each is the warm-up."""
    named = {
        name.replace("_", " ", 1) if name.startswith("without") else name: some for name, some in by_variant.items()
    }
    return [Turn(name, number, cpu, cpu * 2) for name, some in named.items() for number, cpu in enumerate(some)]


OVERHEAD = Overhead(
    1_000_000, 14_000, turns(full=[99.0, 22.0, 24.0], bare=[1.0, 20.0, 20.0], without_record=[50.0, 21.9, 23.9])
)
RESULTS = Results({"parts": "abcdef"}, [MEASURED], CATCH_UP, OVERHEAD, {1_400: BATCH})


def test_what_was_measured_is_put_away_before_the_next_part_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> CatchUp:
        raise FatalError("the broker is gone", remedy="")

    monkeypatch.setattr(session, "rig", lambda *_, **__: nullcontext(SimpleNamespace(settings=Settings())))
    monkeypatch.setattr(session.latency, "measure", lambda *_: (None, MEASURED))
    monkeypatch.setattr(session.catch_up, "measure", fails)
    kept: list[str] = []
    wanted = Wanted(parts=frozenset("ab"), rates=(1_400.0,))

    with pytest.raises(FatalError):
        session.run(Settings(), wanted, lambda *_: None, lambda results: kept.append(json.dumps(to_json(results))))

    assert [json.loads(one)["latency"][0]["latency"] for one in kept] == [MEASURED.latency]


@pytest.mark.parametrize("module", [overhead_module, svg, visible_module])
def test_the_examples_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_costs_are_differences_of_pairs_without_the_warm_up() -> None:
    told = OVERHEAD.summary()

    assert told["variants"]["full"]["cpu_s_per_million"]["mean"] == 23.0
    assert told["costs"]["all"]["cpu_s_per_million"]["mean"] == 3.0
    assert told["costs"]["all"]["cpu_percent"]["mean"] == pytest.approx(15.0)
    assert told["costs"]["all"]["wall_percent"]["mean"] == pytest.approx(15.0)
    assert told["costs"]["record"]["cpu_s_per_million"]["mean"] == pytest.approx(0.1)
    assert told["costs"]["record"]["cpu_s_per_million"]["of"] == 2
    assert told["costs"]["all"]["cpu_percent"]["low"] < 15 < told["costs"]["all"]["cpu_percent"]["high"]


def test_every_variant_is_first_and_last_in_some_round() -> None:
    names = list(variants(each=True))
    orders = [rotated(names, number) for number in range(2 * len(names))]

    assert {order[0] for order in orders} == {order[-1] for order in orders} == set(names)
    assert all(sorted(order) == sorted(names) for order in orders)
    assert variants(each=False) == {FULL: frozenset(), BARE: frozenset(LINEAGE_PARTS)}


def test_a_part_of_lineage_that_does_not_exist_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="records: no part of lineage"):
        StreamOptions(off=frozenset({"records"}))


def test_the_warm_up_of_a_catch_up_counts_only_if_it_is_all() -> None:
    assert CATCH_UP.summary()["pipeline"]["steady_events_s"] == 62_000
    assert CATCH_UP.summary()["share_of_copy"] == pytest.approx(62 / 120)
    alone = CatchUp(1, None, [run(10.0)], [run(40.0)])
    assert alone.summary()["share_of_copy"] == 0.25


def test_figures_are_held_against_their_limits() -> None:
    found = {one.name: (one.limit, one.reached) for one in figures(RESULTS)}

    assert found["p99 at 1,400 events/s"] == (3.0, True)
    assert found["catch-up"] == (60_000, True)
    assert found["catch-up, share of a plain copy"] == (0.5, True)
    assert found["CPU cost of record"] == (1.0, True)
    assert found["CPU cost of all"] == (None, None), "published, with no limit"


def test_a_p99_of_rows_of_which_some_are_missing_reaches_nothing() -> None:
    torn = Results(latency=[replace(MEASURED, complete=False, expected=4)])

    assert [one.reached for one in figures(torn)] == [False]
    assert torn.incomplete == ["1,400 events/s: the reader saw 3 of 4 rows"]
    assert "NO: 4 expected" in "\n".join(lines(torn))


def test_a_rate_without_a_promise_is_published_as_it_is() -> None:
    assert [(one.value, one.reached) for one in figures(Results(latency=[replace(MEASURED, rate=700)]))] == [
        (2.999, None)
    ]


def test_everything_is_told_per_million_events() -> None:
    document = json.loads(json.dumps(to_json(RESULTS)))

    assert document["latency"][0]["cpu_s_per_million"] == pytest.approx(100.0), "42 s for 420,000 events"
    assert document["latency"][0]["bytes_per_million"] == {"live": 50e6, "other": 1e6, "log": 1e6}
    assert document["batch"][0]["cpu_s_per_million"] == 25.0
    assert document["machine"]["cores"] >= 1
    assert "arrived" not in document["latency"][0]


def test_the_table_has_every_part() -> None:
    text = "\n".join(lines(RESULTS))

    for part in "abcdef":
        assert f"({part}) " in text
    assert "spark 2,000 MB" in text and "dagster 0" not in text
    assert "(e) commit -> visible in Dagster at 1,400 events/s, in seconds: p50 30.0, p99 65.0" in text


def test_what_was_not_measured_is_not_told() -> None:
    assert lines(Results()) == [] and figures(Results()) == [] and plots(Results()) == {}


def test_plots_are_well_formed_and_named_by_what_they_show(tmp_path: Path) -> None:
    written = write_plots(RESULTS, tmp_path / "bench")

    names = {file.name for file in written}
    assert names == {"latency-1400.svg", "latency.svg", "catch-up.svg", "overhead.svg"}
    for file in written:
        root = ElementTree.parse(file).getroot()
        assert root.tag.endswith("svg") and root.find("{http://www.w3.org/2000/svg}title") is not None


def test_a_bar_is_as_long_as_its_value_and_text_is_escaped() -> None:
    text = svg.bars("a < b", [svg.Bar("one", 50.0), svg.Bar("two", 100.0, 90.0, 110.0)], "%")
    widths = [float(rect.get("width", 0)) for rect in ElementTree.fromstring(text) if rect.get("fill-opacity")]

    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert "a &lt; b" in text


@pytest.mark.parametrize("values", [[], [0.0], [-3.0, -1.0]])
def test_plots_of_nothing_and_of_negative_values_are_drawn(values: list[float]) -> None:
    ElementTree.fromstring(svg.bars("t", [svg.Bar("x", one) for one in values], "%"))
    ElementTree.fromstring(svg.points("t", {"x": [(0.0, abs(one)) for one in values]}, "s", "s"))


def test_what_is_committed_in_the_measured_time_is_timed_until_it_is_shown_first() -> None:
    visible = Visible(lambda: {0: 100, 1: 1_000, 2: 3_000, 3: 3_500, 4: 9_999})
    visible.shown([0], 500)
    visible.shown([1, 2], 4_000)
    visible.shown([2, 4], 9_000)

    told = visible.summary(1_000, 9_000, timeout_s=0)

    assert (told["count"], told["p50_ms"], told["max_ms"]) == (2, 1_000, 3_000)
    assert (told["materializations"], told["never_shown"]) == (1, 1)


def test_materializations_of_an_instance_are_seen_with_the_versions_that_they_cover() -> None:
    asset = dg.AssetKey(["silver", "clicks"])
    with (
        dg.DagsterInstance.ephemeral() as instance,
        watching(instance, "silver/clicks", lambda: {7: 0, 8: 0}, 0.01) as seen,
    ):
        for versions in ("[5, 8)", "[8, 9), [10, 12)"):
            instance.report_runless_asset_event(dg.AssetMaterialization(asset, metadata={"delta/versions": versions}))
        told = seen.summary(0, 1, timeout_s=20)

    assert (told["count"], told["never_shown"]) == (2, 0)


def test_memory_dagster_and_batch_are_measured_on_the_run_of_a() -> None:
    assert Wanted(parts=frozenset("f")).latency and Wanted(parts=frozenset("d")).latency
    assert not Wanted(parts=frozenset("bc")).latency


def test_an_unknown_part_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ContractError, match=r"no part z.*a: latency"):
        require_possible(frozenset("az"), here=False)
