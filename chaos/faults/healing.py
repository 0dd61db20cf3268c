"""Functions that heal a fault."""

from collections.abc import Callable

from chaos.errors import DrillError

Heal = Callable[[], None]


def already_healed() -> None:
    """Heal a fault that ended when it was injected."""


def no_target() -> None:
    """Mark a fault that hit nothing, such as a kill of a dead process."""


def require_target(heal: Heal, target: str) -> Heal:
    """Return `heal`. Raises DrillError when the fault hit nothing."""
    if heal is no_target:
        raise DrillError(f"{target} was not running")
    return heal
