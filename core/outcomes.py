"""How an item ends: exactly one of four outcomes, whose numbers are stored and on the wire."""

from enum import IntEnum


class Outcome(IntEnum):
    """The terminal outcome of an item; the value is what `items.outcome` holds."""

    SUCCEEDED = 1
    FAILED = 2
    CANCELLED = 3
    EXPIRED = 4

    @property
    def label(self) -> str:
        """The name in answers, logs and metric labels."""
        return self.name.lower()
