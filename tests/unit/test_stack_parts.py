"""How the embedded parts are configured: what is local, what is private, what they refuse.

Belongs here: kafka.py, registry.py, spark.py without starting them. Does not belong here: whether they then work.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from lineage_assets.settings import Settings
from lineage_assets.stack import jars, java, kafka, registry, spark
from lineage_assets.stack.errors import StackError
from lineage_assets.stack.part import Part


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [n for n in os.environ if n.startswith(("LINEAGE_", "SPARK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(jars, "unpacked", lambda name: tmp_path / "unpacked")
    return Settings(home=tmp_path / "home")


@pytest.fixture
def engine(settings: Settings) -> Part:
    return spark.part(settings, {"spark_port": 20001})


def properties(part: Part) -> dict[str, str]:
    part.folder.mkdir(parents=True, exist_ok=True)
    part.prepare()
    lines = (part.folder / "spark.conf").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)


def test_the_token_is_in_a_private_file_and_in_no_argument_or_variable(engine: Part) -> None:
    token = properties(engine)["spark.connect.authenticate.token"]
    assert len(token) >= 32
    assert engine.address.endswith(f";token={token}")
    assert token not in " ".join([*engine.argv, *engine.env.values(), engine.shown])
    for name in ("spark.conf", "token"):
        assert (engine.folder / name).stat().st_mode & 0o777 == 0o600


def test_the_token_stays_the_same_for_a_home_and_differs_between_homes(settings: Settings, tmp_path: Path) -> None:
    chosen = {"spark_port": 20001}
    assert spark.part(settings, chosen).address == spark.part(settings, chosen).address
    assert spark.part(Settings(home=tmp_path / "other"), chosen).address != spark.part(settings, chosen).address


def test_the_engine_listens_on_this_machine_only_works_in_utc_and_keeps_its_files_at_home(engine: Part) -> None:
    conf = properties(engine)
    assert conf["spark.connect.grpc.binding.address"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.ui.enabled"] == "false"
    home = str(engine.folder)
    assert conf["spark.sql.warehouse.dir"].startswith(home) and engine.env["SPARK_LOCAL_DIRS"].startswith(home)


def test_an_outer_spark_remote_does_not_reach_the_server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn")
    env = spark.part(settings, {"spark_port": 20001}).env
    assert "SPARK_REMOTE" not in env and "PYSPARK_SUBMIT_ARGS" not in env


def test_the_heap_is_a_setting(settings: Settings) -> None:
    bigger = settings.model_copy(update={"spark_memory": "3g"})
    assert "-Xmx3g" in spark.part(bigger, {"spark_port": 20001}).argv


def test_more_java_options_may_be_given_and_win(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAGE_SPARK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 '-Dname=a b'")
    argv = spark.part(settings, {"spark_port": 20001}).argv
    place = argv.index("-Dname=a b")
    assert argv.index("-Xms512m") < place < argv.index("-cp")


def test_a_lake_on_s3_without_an_s3_client_is_refused_with_what_to_set(settings: Settings) -> None:
    part = spark.part(settings.model_copy(update={"lake": "s3://bucket/lake"}), {"spark_port": 20001})
    with pytest.raises(StackError, match=r"s3://bucket/lake.*hadoop-aws"):
        properties(part)


def test_a_lake_on_s3_with_an_s3_client_is_configured_in_the_private_file(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_SPARK_CLASSPATH", "hadoop-aws-3.5.0.jar")
    options = {"aws_secret_access_key": SecretStr("hidden")}
    on_s3 = settings.model_copy(update={"lake": "s3://bucket/lake", "storage_options": options})
    part = spark.part(on_s3, {"spark_port": 20001})
    assert properties(part)["spark.hadoop.fs.s3a.secret.key"] == "hidden"
    assert "hidden" not in " ".join(part.argv)


def test_the_broker_keeps_records_of_any_age_and_makes_no_topic_by_itself(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_format", lambda folder: None)
    part = kafka.part(settings, {"kafka_port": 20001, "kafka_controller_port": 20002})
    part.prepare()
    conf = dict(line.split("=", 1) for line in (part.folder / "server.properties").read_text().splitlines())
    assert conf["log.retention.ms"] == conf["log.retention.bytes"] == "-1"
    assert conf["auto.create.topics.enable"] == "false"
    assert conf["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"


def test_the_registry_listens_on_this_machine_only_and_keeps_its_database_on_disk(settings: Settings) -> None:
    part = registry.part(settings, {"registry_port": 20001})
    assert {"-Dquarkus.http.host=127.0.0.1", "-Dquarkus.management.host=127.0.0.1"} <= set(part.argv)
    assert f"-Dapicurio.datasource.url=jdbc:h2:file:{settings.stack_dir / 'registry' / 'registry'}" in part.argv


def test_a_java_home_without_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAGE_JAVA_HOME", str(tmp_path))
    with pytest.raises(StackError, match=r"LINEAGE_JAVA_HOME=.* bin/java"):
        java.java()


def test_the_probes_of_what_is_not_there_say_why() -> None:
    assert kafka.probe("127.0.0.1:1")
    assert "refused" in registry.probe("http://127.0.0.1:1")
    assert spark.probe("sc://localhost:1", 1) == "its port is not open yet"
