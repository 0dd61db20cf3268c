"""Opens input files in a few threads: a store that throttles occupies slots, and stops no round.

An object store answers an overload when an object is opened; its client then retries for seconds.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

from jobs.expansion.emission import ItemReader

SLOTS: Final = 8
"""Files that are opened at once."""

WAIT_S_MAX: Final = 0.2
"""How long a round waits for files to open: a store that is well takes tens of milliseconds."""


class ReaderSlots:
    """Starts openings while a slot is free. Used by one thread."""

    def __init__(self, count: int = SLOTS) -> None:
        """At most `count` files are opened at once."""
        self._count = count
        self._busy: set[Future[ItemReader]] = set()

    @property
    def busy_count(self) -> int:
        """Files that are being opened."""
        self._busy = {opening for opening in self._busy if not opening.done()}
        return len(self._busy)

    def start(
        self, open_reader: Callable[[], ItemReader], *, has_failed: bool = False
    ) -> "Future[ItemReader] | None":
        """Open a reader in a thread; None while no slot is free.

        Files that could not be opened before (`has_failed`) leave half of the slots to others.
        """
        if self.busy_count >= (max(1, self._count // 2) if has_failed else self._count):
            return None
        opening: Future[ItemReader] = Future()
        self._busy.add(opening)
        run = threading.Thread(target=_run, args=(opening, open_reader), name="reader", daemon=True)
        run.start()  # a daemon: a store that hangs does not keep the process from ending
        return opening


def _run(opening: "Future[ItemReader]", open_reader: Callable[[], ItemReader]) -> None:
    try:
        opening.set_result(open_reader())
    except BaseException as failure:  # noqa: BLE001  the future raises it in the round
        opening.set_exception(failure)


def wait_for_opening(opening: "Future[ItemReader]", timeout_s: float) -> bool:
    """Wait for an opening; return whether it has ended."""
    return opening.done() or bool(wait([opening], max(0.0, timeout_s)).done)


def abandon_opening(opening: "Future[ItemReader]") -> None:
    """Close the reader of an opening as soon as it has ended."""

    def close(ended: "Future[ItemReader]") -> None:
        if ended.exception() is None:
            ended.result().close()

    opening.add_done_callback(close)
