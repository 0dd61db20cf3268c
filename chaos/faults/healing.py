"""What ends a fault."""

from collections.abc import Callable

from chaos.errors import DrillError

Heal = Callable[[], None]


def already_healed() -> None:
    """The fault was over as it happened."""


def no_target() -> None:
    """The fault met nobody, as a kill of a process that was dead: nothing was tried."""


def require_target(heal: Heal, target: str) -> Heal:
    """Return the cure of a fault that a drill is about. Raises DrillError when it was `no_target`."""
    if heal is no_target:
        raise DrillError(f"{target} was not there to be struck")
    return heal
