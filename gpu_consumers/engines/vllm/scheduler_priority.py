"""The order of requests in vLLM's own queue."""


def scheduler_priority(asked: int, *, is_bulk: bool) -> int:
    """Return what vLLM's scheduler is told; lower is earlier.

    Online calls are all alike, and before every item: what one client asks for would push back the
    calls of others. Among themselves items keep the order that they ask for.
    """
    return max(asked, 0) + 1 if is_bulk else 0
