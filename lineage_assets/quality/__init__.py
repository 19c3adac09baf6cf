"""Contracts: what a record must look like, as rules that Spark can run, and what their outcomes mean."""
