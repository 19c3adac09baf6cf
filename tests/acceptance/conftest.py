"""The real stack for acceptance tests: the fixture of the integration tests, the same stack for both.

Belongs here: lending that stack. Does not belong here: starting one (tests/integration/conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from lineage_assets.settings import Settings


def _integration() -> Any:
    """The integration tests' conftest by its path: their folder is no package."""
    spec = spec_from_file_location("integration_conftest", Path(__file__).parents[1] / "integration" / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stack = _integration().stack


@pytest.fixture(scope="session")
def lent_stack(stack: Settings) -> Iterator[Settings]:
    """The stack, lent to the integration tests that follow in this session: a second one would not fit beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINEAGE_TEST_HOME", str(stack.home))
        yield stack
