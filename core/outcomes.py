"""The four terminal outcomes of an item; their numbers are stored and sent."""

from enum import IntEnum


class Outcome(IntEnum):
    """The terminal outcome of an item; the value of `items.outcome`."""

    SUCCEEDED = 1
    FAILED = 2
    CANCELLED = 3
    EXPIRED = 4

    @property
    def label(self) -> str:
        """The name in answers, logs and metric labels."""
        return self.name.lower()
