"""What ends a fault."""

from collections.abc import Callable

from chaos.errors import DrillError

Cure = Callable[[], None]


def nothing() -> None:
    """The fault was over as it happened."""


def missed() -> None:
    """The fault met nobody, as a kill of a process that was dead: nothing was tried."""


def struck(cure: Cure, target: str) -> Cure:
    """Return the cure of a fault that a drill is about. Raises DrillError when it was `missed`."""
    if cure is missed:
        raise DrillError(f"{target} was not there to be struck")
    return cure
