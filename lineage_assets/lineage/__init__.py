"""The core: offset ranges, slices, fates, commit records, schema hashes, names, column lineage and the ledger.

Belongs here: decisions as pure functions over values. Does not belong here: dagster, pyspark, confluent_kafka, or any
service.
"""
