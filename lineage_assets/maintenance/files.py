"""The files of a Delta table as they lie in storage: those of its log by version, and all of them by size.

Belongs here: listing and removing files, local or in an object store. Does not belong here: which of them may go.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lineage_assets.lineage.commits import Lake

LOG = "_delta_log"
AT_ONCE = 16
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.parquet|\.(\d{10})\.(\d{10})\.parquet)")
_CHECKSUM = re.compile(r"\.?(\d{20})\..*crc")
"""Of a version by Delta, or of a file of the log by Hadoop, which writes one beside every local file."""


@dataclass(frozen=True, slots=True)
class File:
    """A file by its path within the table."""

    path: str
    bytes: int
    changed_at: datetime


@dataclass(slots=True)
class LogFiles:
    """A Delta log: commits, complete checkpoints and checksums, with their versions."""

    commits: dict[int, File] = field(default_factory=dict)
    checkpoints: dict[int, list[File]] = field(default_factory=dict)
    checksums: list[tuple[int, File]] = field(default_factory=list)
    bytes: int = 0

    @property
    def newest(self) -> int:
        """The newest version, -1 for no log."""
        return max(self.commits, default=-1)

    @property
    def last_checkpoint(self) -> int:
        """The version of the newest whole checkpoint, -1 for none."""
        return max(self.checkpoints, default=-1)


def storage(lake: Lake, asset: str) -> Any:
    """The table's folder as a pyarrow file system, wherever it is."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(lake.path(asset), dict(lake.storage_options) or None))


def listed(lake: Lake, asset: str, folder: str = "") -> list[File]:
    """All files below a table, or below a folder of it."""
    from deltalake.exceptions import TableNotFoundError
    from pyarrow.fs import FileSelector, FileType

    try:
        files = storage(lake, asset)
    except TableNotFoundError:
        # A local folder that is not there; an object store has no folders, and finds nothing below.
        return []
    found = files.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
    return [File(one.path, int(one.size or 0), one.mtime) for one in found if one.type == FileType.File]


def log_files(lake: Lake, asset: str) -> LogFiles:
    """What a table's log consists of."""
    log = LogFiles()
    parts: dict[int, dict[str, list[File]]] = defaultdict(lambda: defaultdict(list))
    for file in listed(lake, asset, LOG):
        log.bytes += file.bytes
        name = file.path.rpartition("/")[2]
        if found := _COMMIT.fullmatch(name):
            log.commits[int(found[1])] = file
        elif found := _CHECKSUM.fullmatch(name):
            log.checksums.append((int(found[1]), file))
        elif found := _CHECKPOINT.fullmatch(name):
            parts[int(found[1])][found[3] or "1"].append(file)
    for version, by_count in parts.items():
        # A checkpoint of several parts is one when all are there.
        whole = [files for count, files in by_count.items() if len(files) == int(count)]
        if whole:
            log.checkpoints[version] = [file for files in by_count.values() for file in files]
    return log


def remove(lake: Lake, asset: str, paths: Iterable[str]) -> int:
    """Remove files of a table; one that is gone already is no fault. Returns how many were removed."""
    from pyarrow.fs import FileType

    files = storage(lake, asset)

    def one(path: str) -> int:
        if files.get_file_info(path).type == FileType.NotFound:
            return 0
        files.delete_file(path)
        return 1

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(one, paths))


def actions(lake: Lake, asset: str, version: int) -> list[dict[str, Any]]:
    """What a commit says, as it stands in the log."""
    with storage(lake, asset).open_input_stream(f"{LOG}/{version:020}.json") as stream:
        return [json.loads(line) for line in stream.read().splitlines() if line.strip()]
