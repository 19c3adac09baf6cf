"""Formats that a library decides: what is clear without it, and the check itself for Spark's Python workers.

Belongs here: the checks, and the columns that run them. Does not belong here: formats that are a pattern
(rules.py). The server's Python imports this module, so it imports nothing that the workers lack.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

# Not late: Spark reads the types of the function's signature when it registers it.
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column

REMEMBERED = 200_000
"""Distinct values whose answer a worker keeps: of a shop's visitors most come again. About 30 MB when full."""

_LABEL = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_RESERVED = "(?i:arpa|invalid|local|localhost|onion|test)"
PLAIN = rf"[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+)*@(?:{_LABEL}\.)+(?!{_RESERVED}\Z)[A-Za-z]{{2,}}"
"""Addresses that need no library: it accepts every one of them (a property test holds this). Java reads it alike."""
PLAIN_LENGTH = 63
NEVER = "[^@]*(?:@[A-Za-z0-9-]*)?"
"""Texts that need none either: no address is without an @, or has a domain of one label (a property test, too)."""
_PLAIN, _NEVER = re.compile(PLAIN), re.compile(NEVER)


@lru_cache(maxsize=REMEMBERED)
def is_email(text: str) -> bool:
    """Whether a text is an e-mail address by RFC 5321 and 6531, by its form alone: nothing is looked up.

    >>> is_email("ann@shop.com"), is_email("ann@shop"), is_email("ann@shop.test")
    (True, False, False)
    """
    if len(text) <= PLAIN_LENGTH and _PLAIN.fullmatch(text):
        return True
    if _NEVER.fullmatch(text):
        return False
    from email_validator import EmailNotValidError, validate_email

    try:
        validate_email(text, check_deliverability=False, test_environment=False)
    except (EmailNotValidError, ValueError):
        # Not only its own error: some malformed internationalised domains raise a UnicodeError, which is a ValueError.
        return False
    return True


def email_batch(values: pa.Array) -> pa.Array:
    """is_email of a batch, once for each distinct value; null stays null."""
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(values)
    answers = pa.array([is_email(text) for text in encoded.dictionary.to_pylist()], pa.bool_())
    return answers.take(encoded.indices)


def clear_email_column(text: Column) -> Column:
    """What the patterns alone say: whether the text is an e-mail address; null where only the library knows."""
    from pyspark.sql import functions as F

    plain = (F.length(text) <= PLAIN_LENGTH) & text.rlike(rf"\A(?:{PLAIN})\z")
    return F.when(plain, True).when(text.rlike(rf"\A(?:{NEVER})\z"), False)


def email_column(text: Column) -> Column:
    """A boolean column: whether the text is an e-mail address; null for null."""
    from pyspark.sql.functions import arrow_udf

    check: Column = arrow_udf(email_batch, "boolean")(text)
    return check
