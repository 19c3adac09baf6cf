"""Dagster assets for Kafka, Spark, Delta Lake and dbt that carry their exact lineage in every commit."""

__version__ = "0.1.0"
