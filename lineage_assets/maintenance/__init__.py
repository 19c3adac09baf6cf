"""What keeps tables, logs, ledger and Dagster's storage small, beside streams and runs that go on. Does not belong here:
writing data, telling Dagster."""
