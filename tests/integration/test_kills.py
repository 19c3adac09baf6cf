"""Kill -9 at random points: nothing is lost, nothing stands twice, every commit has its record, `verify` is clean.

LINEAGE_KILLS sets how many (6 by default; `make torture` does 100), LINEAGE_SEED makes a run again.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from lineage_assets.kafka.client import describe, end_offsets
from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import commits
from lineage_assets.reporting.conservation import Source, differences
from lineage_assets.reporting.differences import verify
from tests.integration.engine import Engine
from tests.integration.kills import TARGETS, Rig, await_, load, rig
from tests.integration.streams import archived, clean, consumed, ok_places

KILLS = int(os.environ.get("LINEAGE_KILLS", "6"))
SEED = int(os.environ.get("LINEAGE_SEED", str(int(time.time()))))


@pytest.mark.timeout(600 + 120 * KILLS)
def test_nothing_is_lost_or_doubled_whatever_is_killed_whenever(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    print(f"LINEAGE_SEED={SEED}")
    order = [*TARGETS, *(dice.choice(TARGETS) for _ in range(max(0, KILLS - len(TARGETS))))][:KILLS]
    dice.shuffle(order)
    told: Counter[str] = Counter()
    with rig(tmp_path / "home") as rigged:
        for target in order:
            with load(rigged.settings, rigged.table.topic, dice) as confirmed:
                await_(lambda: committed(rigged) > 0, "a first commit", rigged)
                before = committed(rigged)
                await_(lambda b=before: committed(rigged) > b, "the stream commits", rigged)  # type: ignore[misc]
                time.sleep(dice.uniform(0, 3))
                if rigged.kill(target):
                    told[target] += 1
                sent = confirmed()
                await_(lambda s=sent: confirmed() > s, "the broker takes records again", rigged)  # type: ignore[misc]
            await_(lambda: caught_up(rigged), f"raw and silver have everything after {target} was killed", rigged)
            await_(lambda: len(rigged.workers()) == 1, f"one query is left after {target} was killed", rigged)
            assert_whole(rigged)
            print(
                f"{datetime.now(UTC):%H:%M:%S} killed {target}: {len(consumed(engine(rigged)))} records, nothing lost"
            )
        assert sum(told.values()) >= KILLS - 1, told
        assert_ends_in_order(rigged, dice)
        assert_verified(rigged)


def assert_ends_in_order(rigged: Rig, dice: random.Random) -> None:
    """SIGTERM: the batch that runs is committed to both tables, the query is gone, and the client says that all is well."""
    with load(rigged.settings, rigged.table.topic, dice):
        before = committed(rigged)
        await_(lambda: committed(rigged) > before, "the stream commits", rigged)
        assert rigged.terminate("client") == 0
    held = lease.read(rigged.settings.lake_env, rigged.table.topic)
    assert held is not None and held.state == "stopped"
    await_(lambda: not rigged.workers(), "no query is left")
    shop = engine(rigged)
    assert clean(shop) == ok_places(shop)
    assert set(archived(shop)) <= set(consumed(shop))


def engine(rigged: Rig) -> Engine:
    return Engine(rigged.settings, None, rigged.table)  # type: ignore[arg-type]


def committed(rigged: Rig) -> int:
    """The newest version of silver."""
    history = commits(rigged.settings.lake_env, f"silver/{rigged.table.name}", 1)
    return history[0].version if history else 0


def caught_up(rigged: Rig) -> bool:
    topic = describe(rigged.settings, rigged.table.topic)
    wanted = sum(end_offsets(rigged.settings, topic).values())
    shop = engine(rigged)
    return len(shop.raw()) >= wanted and len(clean(shop)) >= len(ok_places(shop))


def assert_whole(rigged: Rig) -> None:
    shop = engine(rigged)
    assert archived(shop) == consumed(shop)
    assert clean(shop) == ok_places(shop)
    for layer in ("raw", "silver"):
        assert all(one.record is not None for one in shop.log(layer)), f"a commit of {layer} has no record"


def assert_verified(rigged: Rig) -> None:
    """What `lineage verify` compares, once the collector has told everything."""
    table = rigged.table
    source = Source(table.topic, table.name, table.grain)
    with dg.DagsterInstance.local_temp(rigged.told_home) as instance:

        def found() -> list[str]:
            lake = rigged.settings.lake_env
            all_found = verify(
                instance, lake, rigged.managed, every_event=True,
                rows=lambda tables: differences(rigged.settings, [source], tables),
            )  # fmt: skip
            return [str(one) for one in all_found if not one.known]

        await_(lambda: not found(), "verify is clean")
