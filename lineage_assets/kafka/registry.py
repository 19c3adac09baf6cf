"""The schema registry: schemas by id and by subject, over the Confluent-compatible API.

Belongs here: questions to the registry, what is remembered of its answers, its errors in our words.
Does not belong here: fingerprints and comparison of schemas (lineage_assets/lineage/), decoding of records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lineage_assets.errors import ContractError, LineageError, TransientError
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

UNKNOWN_FOR_S = 60.0
"""An id that the registry does not know is asked for again after this long, not for each record that carries it."""
TIMEOUT_S = 10.0
_MAX_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema: `type` is AVRO, PROTOBUF or JSON. Avro text is whole: types that it refers to stand in it."""

    id: int
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a subject; `id` is the registry's, as the records carry it."""

    version: int
    id: int
    text: str


class Registry:
    """A client of the registry that the settings name. It connects at the first question.

    An id never changes its meaning, so an answer is kept for the life of this object.
    Every method raises TransientError if the registry is away, and ContractError if it refuses the question.
    """

    def __init__(self, settings: Settings, *, timeout_s: float = TIMEOUT_S) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._client: SchemaRegistryClient | None = None
        self._known: dict[int, SchemaInfo] = {}
        self._unknown_until: dict[int, float] = {}

    def schema(self, schema_id: int) -> SchemaInfo | None:
        """The schema of this id; None if the registry has no such id."""
        if schema_id in self._known:
            return self._known[schema_id]
        # The four bytes after the magic byte of a broken record can be any number; the registry knows no such ids.
        if not 0 <= schema_id <= _MAX_ID or time.monotonic() < self._unknown_until.get(schema_id, 0.0):
            return None
        with self._errors(f"schema id {schema_id}"):
            schema = self._found(lambda client: client.get_schema(schema_id))
            if schema is None:
                self._unknown_until[schema_id] = time.monotonic() + UNKNOWN_FOR_S
                return None
            info = SchemaInfo(schema_id, schema.schema_type or "AVRO", self._whole_text(schema))
        self._known[schema_id] = info
        return info

    def versions(self, subject: str) -> list[SchemaVersion]:
        """All versions of a subject, oldest first; empty if the registry has no such subject."""
        with self._errors(f"subject {subject}"):
            numbers = self._found(lambda client: client.get_versions(subject)) or []
            registered = [self._connected().get_version(subject, number) for number in sorted(numbers)]
            return [
                SchemaVersion(number, int(found.schema_id or 0), self._whole_text(found.schema))
                for number, found in zip(sorted(numbers), registered, strict=True)
            ]

    def register(self, subject: str, text: str, *, schema_type: str = "AVRO") -> int:
        """The id of this schema under the subject: a new version, or the one that has this text already.

        Raises ContractError too if the schema is not valid, or not compatible with the subject's rule.
        """
        from confluent_kafka.schema_registry import Schema

        with self._errors(f"subject {subject}"):
            return self._connected().register_schema(subject, Schema(text, schema_type))

    def _whole_text(self, schema: Schema) -> str:
        text = str(schema.schema_str)
        if not schema.references or (schema.schema_type or "AVRO") != "AVRO":
            return text
        parts: dict[str, Any] = {}
        for name, part in self._referenced(schema):
            parts[name] = json.loads(part)
        return json.dumps(_with_types(json.loads(text), parts, "", set()))

    def _referenced(self, schema: Schema) -> Iterator[tuple[str, str]]:
        for reference in schema.references or ():
            if reference.subject is None or reference.version is None:
                continue
            part = self._connected().get_version(reference.subject, reference.version).schema
            yield from self._referenced(part)
            yield str(reference.name), str(part.schema_str)

    def _found(self, ask: Any) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return ask(self._connected())
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                return None
            raise

    def _connected(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        if self._client is None:
            more = {key: value.get_secret_value() for key, value in self._settings.registry_config.items()}
            limits = {
                "timeout": self._timeout_s,
                "max.retries": 2,
                "retries.wait.ms": 200,
                "retries.max.wait.ms": 1_000,
            }
            try:
                self._client = SchemaRegistryClient({**limits, **more, "url": self._settings.registry})
            except (ValueError, TypeError) as error:
                raise ContractError(
                    f"the registry client refuses its settings ({', '.join(['url', *more])})",
                    remedy="correct LINEAGE_REGISTRY_URL or LINEAGE_REGISTRY_CONFIG",
                ) from error
        return self._client

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        # The client raises errors of httpx2 or httpx, whichever it found; only this module of it knows which.
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            yield
        except SchemaRegistryError as error:
            raise self._in_our_words(what, error) from error
        except (httpx.HTTPError, httpx.InvalidURL, OAuthTokenError) as error:
            raise self._no_answer(str(error)) from error

    def _in_our_words(self, what: str, error: SchemaRegistryError) -> LineageError:
        status = error.http_status_code
        if status == 429 or status >= 500:
            return self._no_answer(f"HTTP {status}: {error.error_message}")
        if status in (401, 403):
            return ContractError(
                f"the registry at {self._place} forbids {what} (HTTP {status})",
                remedy="correct LINEAGE_REGISTRY_CONFIG",
            )
        return ContractError(
            f"the registry at {self._place} refuses {what}: {error.error_message} (HTTP {status})",
            remedy="correct the schema, or the subject's compatibility rule",
        )

    def _no_answer(self, detail: str) -> TransientError:
        return TransientError(
            f"the schema registry at {self._place} does not answer ({detail})",
            remedy="look whether it runs and can be reached from here"
            if self._settings.registry_url
            else "see `lineage status`, and start it with `lineage up`",
        )

    @property
    def _place(self) -> str:
        """The URL without the user and password that it may hold."""
        url = urlsplit(self._settings.registry)
        return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()


def _with_types(node: Any, parts: dict[str, Any], namespace: str, placed: set[str]) -> Any:
    """The Avro schema with each referenced type written out where it is first named, as Avro wants a type once.

    `parts` maps full names to definitions; `placed` collects those that are written out.
    """
    if isinstance(node, str):
        name = next((name for name in (f"{namespace}.{node}", node) if name in parts), None)
        if name is None or name in placed:
            return node
        placed.add(name)
        # A definition without a namespace means the null namespace, not the one of the place that it is put in.
        part = parts[name]
        own = part if "namespace" in part or "." in part.get("name", "") else {**part, "namespace": ""}
        return _with_types(own, parts, namespace, placed)
    if isinstance(node, list):
        return [_with_types(item, parts, namespace, placed) for item in node]
    if not isinstance(node, dict):
        return node
    inner = node.get("namespace", namespace)
    if "." in node.get("name", ""):
        inner = node["name"].rpartition(".")[0]
    whole = dict(node)
    for key in ("type", "items", "values"):
        if key in node:
            whole[key] = _with_types(node[key], parts, inner, placed)
    if "fields" in node:
        whole["fields"] = [{**item, "type": _with_types(item["type"], parts, inner, placed)} for item in node["fields"]]
    return whole
