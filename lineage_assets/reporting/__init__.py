"""From commit records to what Dagster shows: metadata, verdicts of checks, runless events, what is behind."""
