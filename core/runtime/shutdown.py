"""Turns SIGTERM, SIGINT and SIGHUP into a stop event."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue


class SignalSafeEvent(threading.Event):
    """An event that a signal handler can set without a lock, by `set_from_signal`.

    `set` acquires a lock that is not reentrant. In a handler it would deadlock when the signal
    interrupted a `wait`, or the `set` of an earlier signal.
    """

    def __init__(self) -> None:
        """Start a thread that wakes the waiting threads; it ends after the first signal."""
        super().__init__()
        self._has_signal = False
        self._signals: SimpleQueue[None] = SimpleQueue()  # its `put` is reentrant
        threading.Thread(target=self._set_after_signal, name="stop", daemon=True).start()

    def set_from_signal(self) -> None:
        """Make `is_set` true at once; waiting threads wake a moment later."""
        self._has_signal = True
        self._signals.put(None)

    def is_set(self) -> bool:
        """See `threading.Event`."""
        return self._has_signal or super().is_set()

    def _set_after_signal(self) -> None:
        self._signals.get()
        self.set()


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM, SIGINT or SIGHUP sets. Call once, from the main thread.

    A second SIGINT has Python's default effect, so that a user can end the process at once.
    """
    stop = SignalSafeEvent()

    def handle(signal_number: int, _frame: object) -> None:
        if signal_number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.set_from_signal()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    treat_sighup_as_sigterm()
    return stop


def treat_sighup_as_sigterm() -> None:
    """Handle SIGHUP, which a closing terminal sends, as SIGTERM; keep it ignored under nohup."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block on SIGTERM or SIGINT, after the signal's own handler.

    For work that cannot check a stop event. In the main thread only.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def interrupt(signal_number: int, frame: object) -> None:
        handler = before[signal.Signals(signal_number)]
        if callable(handler):
            handler(signal_number, frame)  # type: ignore[arg-type]  # one of ours, or Python's own
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:  # else the handler has set another one
                signal.signal(number, handler)
