"""Waiting for a condition with a bound, instead of a fixed sleep."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

TIMEOUT_S: Final = 90.0
"""Ends a wait for what never comes, on a busy machine too. A test of a limit checks it itself."""

_POLL_S: Final = 0.01


def until(condition: Callable[[], object], *, timeout_s: float = TIMEOUT_S) -> None:
    """Poll from a thread until `condition` returns something true; fail after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not true within {timeout_s:g} s"
        time.sleep(_POLL_S)


def until_found(find: Callable[[], T | None], *, timeout_s: float = TIMEOUT_S) -> T:
    """Poll from a thread until `find` returns something true, and return it."""
    found: list[T] = []

    def is_found() -> bool:
        if value := find():
            found.append(value)
        return bool(found)

    until(is_found, timeout_s=timeout_s)
    return found[0]


async def until_true(condition: Callable[[], object], *, timeout_s: float = TIMEOUT_S) -> None:
    """Poll on the event loop until `condition` returns something true; fail after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not true within {timeout_s:g} s"
        await asyncio.sleep(_POLL_S)
