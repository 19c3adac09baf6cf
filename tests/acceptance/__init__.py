"""Whole stories on the real stack, each declared and told as a user would.

Belongs here: one package a story. Does not belong here: tests of one part (tests/integration, tests/unit).
"""
