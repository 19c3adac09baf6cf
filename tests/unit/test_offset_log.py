"""The offsets of a micro-batch, from files as Spark 4.2 writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lineage_assets.errors import FatalError
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.spark.offset_log import batch_ranges

HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"spark.sql.shuffle.partitions":"2"}}\n'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "sources/0").mkdir(parents=True)
    # Spark writes a zero byte first, for readers of version 2.1.
    (tmp_path / "sources/0/0").write_text('\0v1\n{"clicks":{"0":5,"1":0}}')
    (tmp_path / "offsets/0").write_text(HEAD + '{"clicks":{"0":9,"1":0}}')
    (tmp_path / "offsets/1").write_text(HEAD + '{"clicks":{"0":9,"1":4,"2":3}}')
    return tmp_path


def test_the_first_batch_begins_where_the_source_began(checkpoint: Path) -> None:
    assert batch_ranges(str(checkpoint), "clicks", 0) == {0: OffsetRange(5, 9), 1: OffsetRange(0, 0)}


def test_a_later_one_begins_where_the_one_before_ended_and_new_partitions_at_zero(checkpoint: Path) -> None:
    expected = {0: OffsetRange(9, 9), 1: OffsetRange(0, 4), 2: OffsetRange(0, 3)}
    assert batch_ranges(str(checkpoint), "clicks", 1) == expected
    assert batch_ranges(checkpoint.as_uri(), "clicks", 1) == expected


def test_offsets_of_another_topic_are_refused(checkpoint: Path) -> None:
    with pytest.raises(FatalError, match="names no offsets of topic orders"):
        batch_ranges(str(checkpoint), "orders", 0)
