"""The contract of the shop's clicks.

Belongs here: what a click must look like, and nothing else. How it is read and kept is in defs.yaml beside this file.
"""

from datetime import datetime

import pandera.pandas as pa

EVENT_TYPES = ["view", "search", "add_to_cart", "checkout", "purchase"]


class Click(pa.DataFrameModel):
    """What a visitor of the shop did."""

    event_id: str = pa.Field(description="One for each event; a resent event keeps it.")
    user_id: int = pa.Field(gt=0, description="The visitor, from 1.")
    session_id: str = pa.Field(description="One visit: it ends after half an hour without an event.")
    event_type: str = pa.Field(isin=EVENT_TYPES, description="What the visitor did.")
    page: str = pa.Field(description="Path of the page.")
    email: str = pa.Field(
        nullable=True,
        metadata={"format": "email", "pii": True},
        description="Address of a visitor who is logged in.",
    )
    amount_cents: int = pa.Field(ge=0, nullable=True, description="What was paid, in cents; of a purchase only.")
    occurred_at: datetime = pa.Field(description="When it happened, in UTC, by the visitor's clock.")
