"""Which parts a home has, and which of them are the user's own.

Belongs here: the list of parts and the settings that replace or move each. Does not belong here: how any of them works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lineage_assets.settings import Settings
from lineage_assets.stack import kafka, ports, registry, spark
from lineage_assets.stack.part import Part


@dataclass(frozen=True, slots=True)
class Kind:
    """One part in general: its ports' settings, whose it is, and how to describe it for given ports."""

    name: str
    port_settings: tuple[str, ...]
    yours: Callable[[Settings], str]
    build: Callable[[Settings, dict[str, int]], Part]


KINDS = (
    Kind("kafka", ("kafka_port", "kafka_controller_port"), lambda s: s.kafka_bootstrap, kafka.part),
    Kind("registry", ("registry_port",), lambda s: s.registry_url, registry.part),
    Kind("spark", ("spark_port",), lambda s: s.spark_remote.get_secret_value(), spark.part),
)


def ports_file(settings: Settings) -> Path:
    return settings.stack_dir / "ports.json"


def yours(settings: Settings) -> Mapping[str, str]:
    """Parts that the settings give an address: name -> address without anything secret."""
    return {kind.name: without_secrets(address) for kind in KINDS if (address := kind.yours(settings))}


def embedded(settings: Settings) -> list[Kind]:
    """Parts that `lineage up` has to start, in the order in which they are listed; `down` goes backwards."""
    return [kind for kind in KINDS if not kind.yours(settings)]


def build(kind: Kind, settings: Settings) -> Part:
    """The part with its ports chosen: those of the settings, else those of last time, else free ones."""
    wanted = {name: getattr(settings, name) for name in kind.port_settings}
    return kind.build(settings, ports.choose(ports_file(settings), wanted))


def without_secrets(address: str) -> str:
    """
    >>> without_secrets("sc://example:15002/;token=abc;user_id=me")
    'sc://example:15002'
    >>> without_secrets("https://me:abc@registry.example/api")
    'https://registry.example/api'
    """
    address = address.split("/;")[0].split(";")[0]
    scheme, separator, rest = address.rpartition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}".split("?")[0]
