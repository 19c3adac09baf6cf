"""The bench: a constant load, a reader that sees what it becomes, and what both and all between cost.

Belongs here: producing, measuring, showing. Does not belong here: anything that a user's data passes through.
"""
