"""Commands of `lineage`, one module each, found by cli.py: nothing is imported here."""
