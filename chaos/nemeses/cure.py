"""What ends a fault."""

from collections.abc import Callable

Cure = Callable[[], None]


def nothing() -> None:
    """The fault was over as it happened."""


def missed() -> None:
    """The fault met nobody, as a kill of a process that was dead: nothing was tried."""
