"""The real stack for integration tests: one a session, started under a folder of its own, or one that runs already.

Belongs here: fixtures that bring the services up, and a session on them. Does not belong here: topics and tables; each test
makes fresh ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lineage_assets import settings as settings_module
from lineage_assets.settings import Settings
from lineage_assets.spark.session import session
from lineage_assets.stack import control

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of a stack that answers. LINEAGE_TEST_HOME names the home of one that is to be used and left running.

    LINEAGE_HOME is set for the session, so that code that reads the settings itself, and commands, find the same stack.
    """
    lent = os.environ.get("LINEAGE_TEST_HOME", "")
    home = Path(lent) if lent else tmp_path_factory.mktemp("home")
    before = os.environ.get("LINEAGE_HOME")
    os.environ["LINEAGE_HOME"] = str(home)
    settings_module.settings.cache_clear()
    settings = Settings()
    try:
        control.up(settings)
        yield settings
    finally:
        if not lent:
            control.down(settings)
        settings_module.settings.cache_clear()
        if before is None:
            del os.environ["LINEAGE_HOME"]
        else:
            os.environ["LINEAGE_HOME"] = before


@pytest.fixture(scope="module")
def spark(stack: Settings) -> Iterator[SparkSession]:
    """A session as our code opens it, one a module."""
    with session(stack) as opened:
        yield opened
