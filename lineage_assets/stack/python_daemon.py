"""Spark's Python daemon, which ends when it has had no worker for a while.

Belongs here: that end. Does not belong here: what a daemon does (pyspark.daemon).

Spark starts a daemon for each session whose queries run Python, and ends it with the server only: 48 MB for every run of a
slice. Spark itself ends workers that were idle for a minute; a daemon that is gone it starts again when it needs one.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

IDLE_S = 60.0


def end_when_idle(_: int, __: FrameType | None) -> None:
    """End this process if it has no child. Called in the daemon alone: a fork inherits no timer."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        os._exit(0)


def main() -> None:
    """What `python -m` runs: pyspark's daemon under a timer."""
    from pyspark.daemon import manager

    signal.signal(signal.SIGALRM, end_when_idle)
    signal.setitimer(signal.ITIMER_REAL, IDLE_S, IDLE_S)
    manager()


if __name__ == "__main__":
    main()
