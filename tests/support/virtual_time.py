"""Runs a coroutine on an event loop whose time jumps to the next timer: minutes take no time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait for a timer: it adds the wait to `now_s`."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits for an event that nothing sets"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop without threads or sockets, and a `core.clock.Clock` of its time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def monotonic_s(self) -> float:
        return self.time()

    def wall_s(self) -> float:
        return self.time()


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on a `VirtualTimeLoop`."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
