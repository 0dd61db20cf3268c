"""Runs the transfers of a model's files a few at once, and counts their bytes."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import Final, TypeAlias, TypeVar

from core.errors import MillraceError

T = TypeVar("T")

THREADS: Final = 4

Report: TypeAlias = Callable[[str, int, int], None]
"""Shows a transfer: what is done, the bytes done, and those of all. Called by several threads."""


class TransferStoppedError(MillraceError):
    """The transfer of another file failed."""


def report_nothing(_what: str, _done: int, _total: int) -> None:
    """Show nothing."""


class ByteProgress:
    """The bytes of one transfer; safe for threads."""

    def __init__(self, what: str, total: int, report: Report) -> None:
        """`total` is in bytes; `report` gets `what` at each step."""
        self._what, self._total, self._report = what, total, report
        self._lock = Lock()
        self._done = 0

    def advance(self, count: int) -> None:
        """Add bytes; a negative count takes back those of a file that starts anew."""
        with self._lock:
            self._done += count
            self._report(self._what, self._done, self._total)


def run_each(work: Callable[[T, Event], None], items: Iterable[T]) -> None:
    """Call `work` for each item in a few threads, and raise the first error.

    After an error or an interrupt the event is set: work that runs must then end soon by
    TransferStoppedError; the rest is not started. No thread runs on when this returns.
    """
    should_stop = Event()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(work, item, should_stop) for item in items]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            should_stop.set()
            pool.shutdown(cancel_futures=True)
    for future in done:
        future.result()
