"""The story that the tests look at: all flights in the topic, thirteen slices from raw to silver, then the mart.

Belongs here: telling it once, in an environment and with a Dagster instance of its own. Does not belong here: what is
asserted (test_flights.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import import_module
from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient

from lineage_assets import settings as settings_module
from lineage_assets.definitions import build_defs
from lineage_assets.kafka.client import client_config
from lineage_assets.settings import Settings

from .produce import TOPIC, produce_flights
from .story import Story, Truth, count_file


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """What the file says."""
    return count_file(tmp_path_factory.mktemp("flights"))


@pytest.fixture(scope="module")
def settings(lent_stack: Settings) -> Iterator[Settings]:
    """The stack with an environment of its own: its tables meet nobody else's, and are removed in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINEAGE_ENV", f"flights-{uuid4().hex[:8]}")
        settings_module.settings.cache_clear()
        own = settings_module.settings()
        try:
            yield own
        finally:
            shutil.rmtree(own.lake_env.root, ignore_errors=True)
    settings_module.settings.cache_clear()


@pytest.fixture(scope="module")
def produced(settings: Settings) -> Iterator[int]:
    """The number of flights in the topic. Its name is declared, so what an interrupted session left goes first."""
    admin = AdminClient(client_config(settings))
    _delete_topic(admin)
    try:
        yield produce_flights(settings)
    finally:
        _delete_topic(admin)


@pytest.fixture(scope="module")
def story(settings: Settings, produced: int, truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Everything materialized: months from the last to the first, because any order must do."""
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))
        with dg.DagsterInstance.get() as instance:
            told = Story(settings, build_defs(import_module(".defs", __package__)), instance)
            told.tick("kafka_topics")
            for month in sorted(truth.months, reverse=True):
                told.make_slice(month)
            told.run("marts/delays_by_carrier")
            yield told


def _delete_topic(admin: AdminClient) -> None:
    if TOPIC in admin.list_topics(timeout=10).topics:
        admin.delete_topics([TOPIC])[TOPIC].result(10)
