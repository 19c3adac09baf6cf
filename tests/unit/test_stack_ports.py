"""Ports of the embedded parts: chosen, kept, and refused when taken.

Belongs here: ports.py. Does not belong here: who listens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage_assets.stack import ports
from lineage_assets.stack.errors import PortInUse


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((ports.HOST, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_chosen_port_is_kept(tmp_path: Path) -> None:
    first = ports.choose(tmp_path / "ports.json", {"a_port": 0, "b_port": 0})
    assert len(set(first.values())) == 2
    assert ports.choose(tmp_path / "ports.json", {"a_port": 0, "b_port": 0}) == first


def test_a_port_of_the_settings_wins_over_a_kept_one(tmp_path: Path) -> None:
    ports.choose(tmp_path / "ports.json", {"a_port": 0})
    assert ports.choose(tmp_path / "ports.json", {"a_port": 1234}) == {"a_port": 1234}


def test_a_forgotten_port_is_chosen_anew(tmp_path: Path) -> None:
    first = ports.choose(tmp_path / "ports.json", {"a_port": 4321})
    ports.forget(tmp_path / "ports.json", "a_port")
    assert ports.choose(tmp_path / "ports.json", {"a_port": 0}) != first


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a_port": "x"}'])
def test_a_torn_file_of_ports_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ports.json").write_text(text)
    assert ports.choose(tmp_path / "ports.json", {"a_port": 0})["a_port"] > 0


def test_a_port_in_use_is_named_with_its_part_its_owner_and_the_setting_that_moves_it(taken: int) -> None:
    with pytest.raises(PortInUse) as caught:
        ports.require_free("kafka", taken, "LINEAGE_KAFKA_PORT")
    assert "kafka" in caught.value.message and str(taken) in caught.value.message
    assert f"pid {os.getpid()}" in caught.value.message
    assert "LINEAGE_KAFKA_PORT" in caught.value.remedy


def test_a_free_port_is_no_error_and_a_taken_one_answers(tmp_path: Path, taken: int) -> None:
    free = ports.choose(tmp_path / "ports.json", {"a_port": 0})["a_port"]
    ports.require_free("kafka", free, "LINEAGE_KAFKA_PORT")
    assert ports.answers(taken) and not ports.answers(free)
