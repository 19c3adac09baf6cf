"""The jars of the embedded stack: locked once by maintainers, fetched and verified at set-up, found at `up`.

Belongs here: reading the lock file, the cache of downloaded jars, class paths.
Does not belong here: which jars are needed (resolve.py).
Run `python -m lineage_assets.stack.jars fetch` (set-up) or `… lock` (maintainers, after changing resolve.ROOTS).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lineage_assets.stack.errors import DownloadFailed, JarsMissing, StackError

LOCK = Path(__file__).with_name("jars.lock")

SETS = ("kafka", "spark", "registry")

TIMEOUT_S = 60
PARALLEL_DOWNLOADS = 6
ATTEMPTS = 3
CHUNK_BYTES = 1 << 20

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a Maven repository. `coordinate` is group:artifact:version[:classifier[:type]]."""

    coordinate: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        _, artifact, version, classifier, kind = split(self.coordinate)
        return f"{artifact}-{version}{'-' + classifier if classifier else ''}.{kind}"

    @property
    def path(self) -> str:
        """Path below the repository's base URL, and below the cache."""
        group, artifact, version, _, _ = split(self.coordinate)
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file}"

    def cached(self) -> Path:
        return cache_dir() / self.path


def split(coordinate: str) -> tuple[str, str, str, str, str]:
    """
    >>> split("a.b:c:1")
    ('a.b', 'c', '1', '', 'jar')
    >>> split("a.b:c:1:all:tar.gz")
    ('a.b', 'c', '1', 'all', 'tar.gz')
    """
    fields = coordinate.split(":")
    if not 3 <= len(fields) <= 5:
        raise StackError(f"{coordinate!r} is no coordinate", remedy="write group:artifact:version[:classifier[:type]]")
    group, artifact, version, *rest = fields
    classifier, kind = (*rest, *("", "jar")[len(rest) :])
    return group, artifact, version, classifier, kind


def cache_dir() -> Path:
    """Where jars are kept for all projects of this user: `$LINEAGE_CACHE/jars`, else the platform's cache folder."""
    chosen = os.environ.get("LINEAGE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute() / "jars"
    from platformdirs import user_cache_path

    return user_cache_path("lineage_assets") / "jars"


def locked(name: str) -> list[Artifact]:
    """The artifacts of one set (`kafka`, `spark` or `registry`)."""
    return [Artifact(**entry) for entry in json.loads(LOCK.read_text())["sets"][name]]


def missing(names: Iterable[str]) -> list[Artifact]:
    """Locked artifacts that the cache lacks or holds with another size: a cheap check, made at every start."""
    return [a for name in names for a in locked(name) if not _has_size(a.cached(), a.size)]


def require(names: Sequence[str]) -> None:
    """Raises JarsMissing unless all sets are in the cache."""
    absent = missing(names)
    if absent:
        raise JarsMissing(
            f"{len(absent)} jars of {', '.join(names)} are not in {cache_dir()}, such as {absent[0].coordinate}",
            remedy="run `make setup` or `python -m lineage_assets.stack.jars fetch`",
        )


def class_path(name: str) -> str:
    return os.pathsep.join(str(a.cached()) for a in locked(name))


def unpacked(name: str) -> Path:
    """The folder into which the single archive of a set is unpacked, once."""
    (archive,) = locked(name)
    folder = archive.cached().with_name(f"unpacked-{archive.sha256[:12]}")
    if folder.is_dir():
        return folder
    require([name])
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unpack-"))
    try:
        with tarfile.open(archive.cached()) as tar:
            tar.extractall(scratch, filter="data")
        _rename_unless_there(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def fetch(names: Iterable[str] = SETS, *, base_url: str | None = None, quiet: bool = False) -> int:
    """Downloads what the cache lacks, several at once, verifies it and unpacks archives. Returns how many files came.

    Raises DownloadFailed, naming the first artifact that failed and why; files that came stay, so trying again goes on.
    """
    names = tuple(names)
    todo = list({a.coordinate: a for a in missing(names)}.values())
    url = base_url or repository_url()
    with _progress(sum(a.size for a in todo), quiet or not todo) as advance:
        download_all(todo, url, advance)
    for name in names:
        if any(a.file.endswith(".tar.gz") for a in locked(name)):
            unpacked(name)
    return len(todo)


def download_all(artifacts: Sequence[Artifact], url: str, advance: Progress) -> None:
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        futures = [pool.submit(download, a, url, advance) for a in artifacts]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def download(artifact: Artifact, url: str, advance: Progress) -> Path:
    """One file into the cache, under its name only when whole and verified. Raises DownloadFailed."""
    target = artifact.cached()
    why = ""
    for _ in range(ATTEMPTS):
        try:
            digest, scratch = stream_to_scratch(f"{url}/{artifact.path}", target, advance)
        except OSError as error:
            why = str(error)
            if getattr(getattr(error, "response", None), "status_code", 0) in (401, 403, 404):
                break
            continue
        if digest == artifact.sha256:
            scratch.replace(target)
            return target
        scratch.unlink()
        why = f"its SHA-256 is {digest}, locked is {artifact.sha256}"
    raise DownloadFailed(
        f"could not fetch {artifact.coordinate} from {url}: {why}",
        remedy="check the network and the disk and run the same command again (what came is kept), "
        "or set LINEAGE_MAVEN_URL to a Maven mirror that you can reach",
    )


def repository_url() -> str:
    """`LINEAGE_MAVEN_URL`, or the public repository that jgo knows."""
    chosen = os.environ.get("LINEAGE_MAVEN_URL", "").rstrip("/")
    if chosen:
        return chosen
    from jgo.constants import MAVEN_CENTRAL_URL

    return str(MAVEN_CENTRAL_URL)


def stream_to_scratch(url: str, target: Path, advance: Progress) -> tuple[str, Path]:
    """Downloads beside `target`; returns the SHA-256 and the scratch file. Nothing is left behind on an error."""
    import requests

    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".part-")
    scratch = Path(name)
    came = 0
    try:
        with os.fdopen(handle, "wb") as out, requests.get(url, stream=True, timeout=TIMEOUT_S) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_content(CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
                came += len(chunk)
                advance(len(chunk))
    except BaseException:
        advance(-came)
        scratch.unlink(missing_ok=True)
        raise
    return digest.hexdigest(), scratch


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _rename_unless_there(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


@contextmanager
def _progress(total_bytes: int, quiet: bool) -> Iterator[Progress]:
    """A progress bar over all downloads, which threads may advance; none when asked for quiet."""
    if quiet:
        yield lambda count: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("jars", total=total_bytes)
        yield lambda count: bar.advance(task, count)


def _main(arguments: Sequence[str]) -> int:
    from lineage_assets.errors import LineageError

    if list(arguments) == ["lock"]:
        from lineage_assets.stack import resolve

        resolve.write_lock()
        return 0
    if list(arguments) != ["fetch"]:
        print("usage: python -m lineage_assets.stack.jars fetch|lock", file=sys.stderr)
        return 2
    try:
        came = fetch()
    except LineageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"jars: {came} fetched, all verified, in {cache_dir()}" if came else f"jars: all in {cache_dir()}")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
