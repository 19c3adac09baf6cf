"""The offsets of a running micro-batch, out of the checkpoint that Structured Streaming writes before it runs one.

Belongs here: reading those files, from a local folder or an object store. Does not belong here: what is done with ranges.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from lineage_assets.errors import FatalError
from lineage_assets.lineage.offsets import OffsetRange


def batch_ranges(checkpoint: str, topic: str, batch: int) -> dict[int, OffsetRange]:
    """What a batch reads, partition by partition; those without news have an empty range.

    A batch starts where the one before it ended, the first one at what `sources/0/0` says; a partition that appears
    later at its earliest offset, which is 0 or the query fails.
    """
    end = _offsets(f"{checkpoint}/offsets/{batch}", topic)
    start = _offsets(f"{checkpoint}/offsets/{batch - 1}" if batch else f"{checkpoint}/sources/0/0", topic)
    return {partition: OffsetRange(start.get(partition, 0), last) for partition, last in sorted(end.items())}


def _offsets(file: str, topic: str) -> dict[int, int]:
    lines = _read(file).lstrip("\0").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    offsets = next((one[topic] for one in reversed(found) if topic in one), None)
    if offsets is None:
        raise FatalError(
            f"{file} names no offsets of topic {topic}", remedy="start the stream again: it makes a new checkpoint"
        )
    return {int(partition): int(offset) for partition, offset in offsets.items()}


def _read(file: str) -> str:
    if urlsplit(file).scheme in ("", "file"):
        with open(urlsplit(file).path, encoding="utf-8") as stream:
            return stream.read()
    import fsspec

    opened: Any = fsspec.open(file, "r", encoding="utf-8")
    with opened as stream:
        return str(stream.read())
