"""Recognises out-of-memory exceptions of engines."""

from typing import Final

_CAUSES_MAX: Final = 10


def is_out_of_memory(failure: BaseException) -> bool:
    """Whether an exception or one of its causes is Python's or a device's out-of-memory error.

    A device's is recognised by name: the frameworks that declare it are not imported here.
    """
    cause: BaseException | None = failure
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return False
        if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
            return True
        cause = cause.__cause__ or cause.__context__
    return False
