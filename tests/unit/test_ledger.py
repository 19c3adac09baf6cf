"""The ledger's cuts: written once, whoever writes, and read back as they were."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from lineage_assets.lineage import ledger
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import TopicRef
from lineage_assets.lineage.slices import Cut

HOUR = timedelta(hours=1)
NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)
CLICKS = TopicRef("local", "clicks", "id-1")


def test_a_topic_without_cuts_has_none(tmp_path):
    assert ledger.cuts(Lake(str(tmp_path)), CLICKS) == []


def test_cuts_come_back_in_order_of_time(tmp_path):
    lake = Lake(str(tmp_path))
    later, earlier = Cut(NOON + HOUR, {0: 7, 1: 9}), Cut(NOON, {0: 3})
    ledger.add_cuts(lake, CLICKS, [later], "arrival")
    assert ledger.add_cuts(lake, CLICKS, [earlier], "index") == [earlier, later]
    assert ledger.cuts(lake, CLICKS) == [earlier, later]


def test_the_first_insert_of_an_instant_wins(tmp_path):
    lake = Lake(str(tmp_path))
    ledger.add_cuts(lake, CLICKS, [Cut(NOON, {0: 3})], "arrival")
    standing = ledger.add_cuts(lake, CLICKS, [Cut(NOON, {0: 99}), Cut(NOON + HOUR, {0: 5})], "arrival")
    assert standing == [Cut(NOON, {0: 3}), Cut(NOON + HOUR, {0: 5})]
    assert ledger.cuts(lake, CLICKS) == standing


def test_a_recreated_topic_has_cuts_of_its_own(tmp_path):
    lake = Lake(str(tmp_path))
    ledger.add_cuts(lake, CLICKS, [Cut(NOON, {0: 3})], "arrival")
    assert ledger.cuts(lake, TopicRef("local", "clicks", "id-2")) == []


def test_writers_at_the_same_time_agree_on_one_cut(tmp_path):
    lake = Lake(str(tmp_path))

    def write(number: int) -> list[Cut]:
        return ledger.add_cuts(lake, CLICKS, [Cut(NOON, {0: number})], "arrival")

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(write, range(8)))
    (stands,) = ledger.cuts(lake, CLICKS)
    assert all(cuts == [stands] for cuts in seen)


def test_writers_of_different_instants_at_the_same_time_all_get_in(tmp_path):
    lake = Lake(str(tmp_path))
    wanted = [Cut(NOON + number * HOUR, {0: number}) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda cut: ledger.add_cuts(lake, CLICKS, [cut], "arrival"), wanted))
    assert ledger.cuts(lake, CLICKS) == wanted
