"""The cache of locked jars: what is downloaded, verified, missing. The repository is a local web server.

Belongs here: jars.py and the lock file. Does not belong here: starting anything with these jars.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lineage_assets.stack import jars, resolve
from lineage_assets.stack.errors import DownloadFailed, JarsMissing, StackError


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Tests print nothing."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LINEAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars"


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    root = tmp_path / "repository"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield root, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def publish(root: Path, coordinate: str, content: bytes) -> jars.Artifact:
    artifact = jars.Artifact(coordinate, hashlib.sha256(content).hexdigest(), len(content))
    (root / artifact.path).parent.mkdir(parents=True)
    (root / artifact.path).write_bytes(content)
    return artifact


def nothing(count: int) -> None:
    """A progress nobody watches."""


def test_a_coordinate_becomes_the_path_of_maven_repositories() -> None:
    assert jars.Artifact("a.b:c:1.2", "", 0).path == "a/b/c/1.2/c-1.2.jar"
    assert jars.Artifact("a.b:c:1.2:all:tar.gz", "", 0).path == "a/b/c/1.2/c-1.2-all.tar.gz"


@pytest.mark.parametrize("coordinate", ["a:b", "a:b:c:d:e:f", ""])
def test_what_is_no_coordinate_is_refused_by_name(coordinate: str) -> None:
    with pytest.raises(StackError, match=repr(coordinate)):
        jars.split(coordinate)


def test_the_lock_file_holds_every_root_and_names_no_host() -> None:
    text = jars.LOCK.read_text()
    assert "://" not in text
    for name, roots in resolve.ROOTS.items():
        locked = {a.coordinate for a in jars.locked(name)}
        assert {root.rstrip("!") for root in roots} <= locked
        assert all(re.fullmatch(r"[0-9a-f]{64}", a.sha256) and a.size > 0 for a in jars.locked(name))


def test_the_engine_gets_no_second_copy_of_what_pyspark_brings() -> None:
    ours = {jars.split(a.coordinate)[1] for a in jars.locked("spark")}
    assert not ours & resolve.brought_by_pyspark()
    assert "delta-spark_4.2_2.13" in ours


def test_a_file_that_fits_the_lock_comes_under_its_name(cache: Path, repository: tuple[Path, str]) -> None:
    root, url = repository
    artifact = publish(root, "a:b:1", b"jar")
    came: list[int] = []
    assert jars.download(artifact, url, came.append).read_bytes() == b"jar"
    assert sum(came) == 3


def test_a_file_with_another_checksum_never_comes_under_its_name(cache: Path, repository: tuple[Path, str]) -> None:
    root, url = repository
    artifact = publish(root, "a:b:1", b"jar")
    (root / artifact.path).write_bytes(b"bad")
    with pytest.raises(DownloadFailed, match=r"a:b:1 .* its SHA-256 is .* locked is"):
        jars.download(artifact, url, nothing)
    assert list(cache.rglob("*.jar")) == list(cache.rglob(".part-*")) == []


def test_a_failed_download_says_which_artifact_why_and_what_to_do(cache: Path, repository: tuple[Path, str]) -> None:
    _, url = repository
    with pytest.raises(DownloadFailed) as caught:
        jars.download(jars.Artifact("a:missing:1", "0" * 64, 1), url, nothing)
    assert "a:missing:1" in caught.value.message and "404" in caught.value.message
    assert "LINEAGE_MAVEN_URL" in caught.value.remedy


def test_a_repository_that_is_away_is_a_failed_download(cache: Path) -> None:
    with pytest.raises(DownloadFailed, match="a:b:1"):
        jars.download(jars.Artifact("a:b:1", "0" * 64, 1), "http://127.0.0.1:1", nothing)


def test_of_several_downloads_those_that_worked_stay(cache: Path, repository: tuple[Path, str]) -> None:
    root, url = repository
    good = publish(root, "a:good:1", b"jar")
    bad = jars.Artifact("a:bad:1", "0" * 64, 1)
    with pytest.raises(DownloadFailed, match="a:bad:1"):
        jars.download_all([good, bad], url, nothing)
    assert good.cached().exists()


def test_a_missing_or_cut_file_is_noticed_at_every_start(
    cache: Path, repository: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, url = repository
    artifact = publish(root, "a:b:1", b"jar")
    entry = {"coordinate": "a:b:1", "sha256": artifact.sha256, "size": 3}
    use_lock(tmp_path, monkeypatch, {"kafka": [entry]})
    with pytest.raises(JarsMissing, match=r"1 jars of kafka .* a:b:1"):
        jars.require(["kafka"])
    assert jars.fetch(["kafka"], base_url=url, quiet=True) == 1
    jars.require(["kafka"])
    assert jars.fetch(["kafka"], base_url="http://127.0.0.1:1", quiet=True) == 0
    artifact.cached().write_bytes(b"ja")
    with pytest.raises(JarsMissing, match="make setup"):
        jars.require(["kafka"])


def test_an_archive_is_unpacked_once_and_whole(
    cache: Path, repository: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, url = repository
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        info = tarfile.TarInfo("app/run.jar")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"run"))
    artifact = publish(root, "a:app:1:all:tar.gz", archive.getvalue())
    entry = {"coordinate": artifact.coordinate, "sha256": artifact.sha256, "size": artifact.size}
    use_lock(tmp_path, monkeypatch, {"registry": [entry]})
    jars.fetch(["registry"], base_url=url, quiet=True)
    folder = jars.unpacked("registry")
    assert (folder / "app" / "run.jar").read_bytes() == b"run"
    assert jars.unpacked("registry") == folder
    assert not list(folder.parent.glob(".unpack-*"))


def test_the_repository_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAGE_MAVEN_URL", "http://mirror.example/maven/")
    assert jars.repository_url() == "http://mirror.example/maven"


def use_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: dict[str, object]) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(json.dumps({"version": 1, "sets": sets}))
    monkeypatch.setattr(jars, "LOCK", lock)
