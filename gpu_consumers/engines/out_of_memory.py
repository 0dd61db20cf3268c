"""Whether an engine's exception says that memory was not enough."""

from typing import Final

_CAUSES_MAX: Final = 10


def is_out_of_memory(failure: BaseException) -> bool:
    """Look at an exception and its causes: Python's own, or a device's, known by its name.

    By name, because the frameworks that declare it are imported by no other engine.
    """
    cause: BaseException | None = failure
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return False
        if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
            return True
        cause = cause.__cause__ or cause.__context__
    return False
