"""Signals that end a run, and a clean-up that they do not cut short."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_on_signals() -> None:
    """Turn the signals that end a process into exceptions, so that children are stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextmanager
def cleanup_on_exit() -> Iterator[contextlib.ExitStack]:
    """Yield a stack that is closed at the end; a second Ctrl-C meanwhile is ignored.

    Else it would leave disks mounted and processes behind. Call it from the main thread.
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
