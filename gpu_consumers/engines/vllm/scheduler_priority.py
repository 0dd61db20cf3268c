"""Priorities in vLLM's own queue."""


def scheduler_priority(requested: int, *, is_bulk: bool) -> int:
    """Return the priority for vLLM's scheduler; lower is earlier.

    Online calls are equal and ahead of every item: a requested priority would delay the calls of
    other clients. Items keep their requested order among themselves.
    """
    return max(requested, 0) + 1 if is_bulk else 0
