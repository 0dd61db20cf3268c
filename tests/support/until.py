"""Waiting for a condition with a bound, instead of a fixed sleep."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

TIMEOUT_S: Final = 90.0
"""Ends a wait for what never comes, on a busy machine too. A test of a limit checks it itself."""

STEP_S_MAX: Final = 20.0
"""Bounds a step of a running stack, such as the end of its processes."""

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.01, 0.05


def until(
    condition: Callable[[], object], awaited: str = "a condition", timeout_s: float = TIMEOUT_S
) -> None:
    """Poll from a thread until `condition` returns something true; fail after `timeout_s`."""
    started_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - started_s
        assert waited_s < timeout_s, f"waited {timeout_s:g} s for {awaited}"
        time.sleep(pause_after(waited_s))


def until_found(
    find: Callable[[], T | None], awaited: str = "a value", timeout_s: float = TIMEOUT_S
) -> T:
    """Poll from a thread until `find` returns something true, and return it."""
    found: list[T] = []

    def is_found() -> bool:
        if value := find():
            found.append(value)
        return bool(found)

    until(is_found, awaited, timeout_s)
    return found[0]


async def until_true(
    condition: Callable[[], object], awaited: str = "a condition", timeout_s: float = TIMEOUT_S
) -> None:
    """Poll on the event loop until `condition` returns something true; fail after `timeout_s`."""
    started_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - started_s
        assert waited_s < timeout_s, f"waited {timeout_s:g} s for {awaited}"
        await asyncio.sleep(pause_after(waited_s))


def pause_after(waited_s: float) -> float:
    """Return the pause until the next poll, in seconds.

    Short waits are polled a hundred times a second, those of 2.5 s and more twenty times: a check
    of a stack lists processes or asks its API, for 5 to 10 ms of CPU.
    """
    return min(max(_PAUSE_S_MIN, waited_s / 50), _PAUSE_S_MAX)
