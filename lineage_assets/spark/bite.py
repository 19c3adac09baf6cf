"""How many records a batch may take: bounded by the server's heap, halved when a batch was too much, grown again.

Belongs here: that arithmetic, free of Spark. Does not belong here: how long a batch took, starting again (stream.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

GOOD_BATCHES = 10
"""So many batches within their time, and a smaller bite grows again."""
SLOW = 5
"""A batch that takes so many times its trigger is too large."""
SHORTEST_TRIGGER_S = 1.0
"""What a trigger counts as when the next batch begins as soon as one ends."""
SMALLEST = 1000
IN_FLIGHT = 0.15
"""Share of the server's heap that the records of one batch may take, with all that is made of them on the way."""
EXPANSION = 8
"""Bytes of heap for a byte of a record: its row, its decoded row, both cached as columns, two files being written."""
USUAL_BYTES = 300.0
"""What a record is taken to have while the topic is empty."""


@dataclass(slots=True)
class Bite:
    """The most records of a batch. `limit` is the profile's, `most` what the heap affords of it, `now` what is in force.

    >>> bite = Bite(limit=8000, trigger_s=1.0)
    >>> bite.judge(took_s=6.0, records=8000), bite.now
    ('took 6.0 s', 4000)
    """

    limit: int
    trigger_s: float
    most: int = field(init=False)
    now: int = field(init=False)
    _good: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.most = self.now = self.limit

    def afford(self, heap_bytes: int, record_bytes: float | None) -> None:
        """Bound it by a server's heap; `record_bytes` is the mean size of a record, None while nothing is known of it."""
        size = max(USUAL_BYTES if record_bytes is None else record_bytes, 1.0)
        whole = self.now == self.most
        self.most = min(self.limit, max(SMALLEST, int(heap_bytes * IN_FLIGHT / (EXPANSION * size))))
        self.now = self.most if whole else min(self.now, self.most)

    def judge(self, took_s: float, records: int) -> str | None:
        """Take note of a batch. Why the stream is to start again with another bite; None: it goes on with this one."""
        if took_s > SLOW * max(self.trigger_s, SHORTEST_TRIGGER_S) and records > self.now // 2:
            return f"took {took_s:.1f} s" if self.halve() else None
        self._good += 1
        if self._good < GOOD_BATCHES or self.now >= self.most:
            return None
        self._good, self.now = 0, min(self.now * 2, self.most)
        return f"{GOOD_BATCHES} good batches"

    def halve(self) -> bool:
        """Half of it, if that is not too small to matter; whether it changed."""
        self._good = 0
        before, self.now = self.now, max(self.now // 2, min(SMALLEST, self.most))
        return self.now != before
