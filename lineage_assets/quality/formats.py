"""Formats that a library decides, for Spark's Python workers.

Belongs here: the checks and the function that runs them on a batch. Does not belong here: formats that are a pattern
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

_PLAIN = re.compile(
    r"[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+)*@(?:[A-Za-z0-9]{1,30}\.){1,3}(?:com|org|net|edu|gov|de|fr|uk|nl|eu|io|co|us)",
)
"""Addresses that need no library: it accepts every one of them (a property test holds this)."""
_PLAIN_LENGTH = 64


@lru_cache(maxsize=REMEMBERED)
def is_email(text: str) -> bool:
    """Whether a text is an e-mail address by RFC 5321 and 6531, by its form alone: nothing is looked up.

    >>> is_email("ann@shop.com"), is_email("ann@shop"), is_email("ann@shop.test")
    (True, False, False)
    """
    if len(text) <= _PLAIN_LENGTH and _PLAIN.fullmatch(text):
        return True
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


def email_column(text: Column) -> Column:
    """A boolean column: whether the text is an e-mail address; null for null."""
    from pyspark.sql.functions import arrow_udf

    check: Column = arrow_udf(email_batch, "boolean")(text)
    return check
