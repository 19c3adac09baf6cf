"""Spark over Connect: the session, decoding, process(slice), and writes that carry their records."""
