"""What ends a fault."""

from collections.abc import Callable

Cure = Callable[[], None]


def nothing() -> None:
    """The fault was over as it happened."""
