"""The few kinds of error that this package raises, each with a cause and a remedy.

Belongs here: types that several packages raise. Does not belong here: errors of one module only.
"""

from __future__ import annotations


class LineageError(Exception):
    """What is wrong and where, and what to do next.

    >>> str(LineageError("topic clicks does not exist", remedy="create it"))
    'topic clicks does not exist; create it'
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy


class ContractError(LineageError):
    """The record's or the declaration's fault: trying again does not help, changing it does."""


class TransientError(LineageError):
    """Something is away or busy: the same call may work later."""


class FatalError(LineageError):
    """Going on would lose or falsify data: stop and tell someone."""


class NotRunning(TransientError):
    """A service that this call needs is not there."""
