"""The thin edge to Kafka and the schema registry: topics, offsets, schemas.

Belongs here: calls to a broker or a registry, and their errors in our words.
Does not belong here: arithmetic on offsets (lineage_assets/lineage/), anything of Spark or Dagster.
"""
