"""A second domain on real input: all flights that left New York City in 2013, from a topic to a mart of delays.

Belongs here: what a user writes (defs/, dbt_project/), the loader of the topic, the story's test.
Does not belong here: code of the engine; the domain needs none.
"""
