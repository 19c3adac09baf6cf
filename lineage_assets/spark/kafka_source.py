"""Offset ranges of a topic as rows, read once by Spark.

Belongs here: the bounded read, its options, the base columns of raw. Does not belong here: decoding, deciding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from lineage_assets.lineage.offsets import Ranges
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASE = {
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
}
"""What raw keeps of each record as it came, in the words of Spark's Kafka source."""


def read(spark: SparkSession, settings: Settings, topic: str, pieces: Sequence[Ranges]) -> DataFrame:
    """The records of some offset ranges, read_committed. A range that the log no longer holds fails the read.

    Each piece holds at most one range per partition. No piece: no row.
    """
    frames = [_read(spark, settings, topic, piece) for piece in pieces if piece]
    if not frames:
        return spark.createDataFrame([], ", ".join(f"`{name}` {kind}" for name, kind in BASE.items()))
    return reduce(lambda left, right: left.unionByName(right), frames)


def _read(spark: SparkSession, settings: Settings, topic: str, piece: Ranges) -> DataFrame:
    options = common_options(settings) | {
        "assign": json.dumps({topic: sorted(piece)}),
        "startingOffsets": starting(topic, {p: span.start for p, span in piece.items()}),
        "endingOffsets": starting(topic, {p: span.end for p, span in piece.items()}),
    }
    return base(spark.read.format("kafka").options(**options).load())


def common_options(settings: Settings) -> dict[str, str]:
    """What every read of Kafka is told: only committed records, headers too, and never to skip what is gone."""
    return {
        "kafka.bootstrap.servers": settings.kafka,
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        **{f"kafka.{name}": value.get_secret_value() for name, value in settings.spark_kafka_config.items()},
    }


def starting(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets of a topic's partitions as the source's options want them."""
    return json.dumps({topic: {str(p): offset for p, offset in sorted(offsets.items())}})


def base(rows: DataFrame) -> DataFrame:
    """What Spark's Kafka source gives, bounded or streaming, in the columns of BASE."""
    return rows.selectExpr(
        *(
            f"CAST(`{name if name != 'timestamp_type' else 'timestampType'}` AS {kind}) AS `{name}`"
            for name, kind in BASE.items()
        )
    )
