"""The embedded stack: Kafka, the schema registry and Spark Connect, local processes that are started and stopped here.

Belongs here: nothing but this line. Does not belong here: imports; each module is loaded by who needs it.
"""
