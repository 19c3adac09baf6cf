"""The Spark Connect session: one per writer, so that nobody's settings leak into another's commits.

Belongs here: opening a session, and telling our three kinds of failure apart in Spark's errors.
Does not belong here: what is done with a session.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from lineage_assets.errors import FatalError, LineageError, TransientError
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 6
"""How often a slice is made again after another writer of the same slice was first."""

T = TypeVar("T")


class LostRace(TransientError):
    """Another writer of the same slice was first: look at its content again, and write what is left."""


CONNECT_PORT = 15002
"""Spark Connect's own default."""
CONNECT_TIMEOUT_S = 5.0


@contextmanager
def session(settings: Settings) -> Iterator[SparkSession]:
    """A fresh session on the Spark Connect server, closed at the end. Raises TransientError when it is away."""
    from pyspark.sql import SparkSession

    require_answer(settings)
    spark = SparkSession.builder.remote(settings.spark).create()
    try:
        with translated(settings):
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        with _active(spark):
            yield spark
    finally:
        spark.stop()


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make it this thread's session: PySpark gives the handle of a checkpoint to whatever session the thread opened first.

    There is no public way; Spark Connect's builder only sets it where none is.
    """
    held = type(spark)._active_session
    before = getattr(held, "session", None)
    held.session = spark
    try:
        yield
    finally:
        held.session = before


def require_answer(settings: Settings) -> None:
    """Raises TransientError when nobody listens at the Spark Connect address: its client tries for ten minutes."""
    address = urlsplit(settings.spark)
    try:
        socket.create_connection((address.hostname or "", address.port or CONNECT_PORT), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise _no_answer(f"at {address.hostname}:{address.port or CONNECT_PORT} does not answer ({error})") from error


def _no_answer(what: str) -> TransientError:
    return TransientError(
        f"Spark Connect {what}", remedy="run `lineage status`; start the embedded one with `lineage up`"
    )


@contextmanager
def translated(settings: Settings) -> Iterator[None]:
    """Turn Spark's errors whose cause a user can act on into ours; let the others through whole."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        known = explain(str(error), settings)
        if known is None:
            raise
        raise known from error


def explain(text: str, settings: Settings) -> LineageError | None:
    """What an error text of Spark means to a user, or None when it has no better words than Spark's.

    >>> explain("StatusCode.UNAVAILABLE: failed to connect to all addresses", Settings()).remedy
    'run `lineage status`; start the embedded one with `lineage up`'
    """
    if "UNAVAILABLE" in text and "connect" in text.lower():
        return _no_answer("does not answer")
    if "org.apache.kafka.common.errors.TimeoutException" in text or "Timed out waiting for a node assignment" in text:
        return TransientError(
            f"Spark gets no answer from Kafka at {settings.kafka}",
            remedy="look whether that broker runs, and whether Spark's own machine can reach it",
        )
    if full := re.search("No space left on device|Disk quota exceeded|File too large", text):
        return FatalError(
            f"the disk of {settings.lake} or of {settings.home} takes no more ({full[0]})",
            remedy="free space or raise the limit, then run this again: what was not committed is made anew",
        )
    if "UNAUTHENTICATED" in text or "Invalid authentication token" in text:
        return FatalError(
            "Spark Connect refuses our token", remedy="check LINEAGE_SPARK_REMOTE, or `lineage down` and `up`"
        )
    return None


def until_won(settings: Settings, make: Callable[[int], T]) -> T:
    """Run `make(attempt)`, from a new snapshot each time, until no other writer of the same slice is first.

    Raises what the last attempt raises, in words that a user can act on where there are any.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with translated(settings):
                return make(attempt)
        except Exception as error:
            if not lost_race(error) or attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def lost_race(error: Exception) -> bool:
    """Whether a commit failed because another writer of the same slice or table was first."""
    codes = ("DELTA_CONCURRENT", "ConcurrentAppend", "ConcurrentTransaction", "DELTA_METADATA_CHANGED")
    return isinstance(error, LostRace) or any(code in str(error) for code in codes)
