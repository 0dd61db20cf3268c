"""Signals that end a run, and a clean-up that a second signal does not interrupt."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_on_signals() -> None:
    """Turn SIGTERM and SIGHUP into SystemExit, so that `finally` blocks stop child processes."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextmanager
def cleanup_on_exit() -> Iterator[contextlib.ExitStack]:
    """Yield an exit stack that is closed at the end of the block with further signals ignored.

    An interrupted clean-up would leave mounted disks and processes behind. Call this from the main
    thread.
    """
    closing = contextlib.ExitStack()
    try:
        yield closing
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in EXIT_SIGNALS}
        try:
            closing.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
