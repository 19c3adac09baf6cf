"""Marts: dbt models over pinned versions of the lake's tables, published as Delta tables with commit records."""
