"""How a process learns that it should stop: SIGTERM, SIGINT and SIGHUP set one event."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM, SIGINT or SIGHUP sets. Call once, from the main thread.

    A second SIGINT falls through to Python's default, so that an impatient user gets out.
    """
    stop = threading.Event()

    def handle(signal_number: int, _frame: object) -> None:
        stop.set()
        if signal_number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    hang_up_as_term()
    return stop


def hang_up_as_term() -> None:
    """Let a SIGHUP, as of a closed terminal, be a SIGTERM; one that is ignored (nohup) stays so."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


@contextmanager
def cut_short_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block when a signal says stop, after what it does otherwise.

    For work that cannot ask whether to stop. In the main thread only.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def cut(signal_number: int, frame: object) -> None:
        handler = before[signal.Signals(signal_number)]
        if callable(handler):
            handler(signal_number, frame)  # type: ignore[arg-type]  # one of ours, or Python's own
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, cut)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is cut:  # else the handler chose another one
                signal.signal(number, handler)
