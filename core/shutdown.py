"""How a process learns that it should stop: SIGTERM, SIGINT and SIGHUP set one event."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue


class SignalSafeEvent(threading.Event):
    """An event that a signal handler may set: `ask` takes no lock, which its own thread may hold.

    `set` takes one that is not reentrant: in a handler it would wait for ever where a wait, or the
    `set` of an earlier signal, was interrupted.
    """

    def __init__(self) -> None:
        """Start the thread that wakes those who wait; it ends with the first ask."""
        super().__init__()
        self._is_asked = False
        self._asks: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt itself
        threading.Thread(target=self._set_once_asked, name="stop", daemon=True).start()

    def set_from_signal(self) -> None:
        """Let the event be set from now on; who waits for it wakes a moment later."""
        self._is_asked = True
        self._asks.put(None)

    def is_set(self) -> bool:
        """See `threading.Event`."""
        return self._is_asked or super().is_set()

    def _set_once_asked(self) -> None:
        self._asks.get()
        self.set()


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM, SIGINT or SIGHUP sets. Call once, from the main thread.

    A second SIGINT falls through to Python's default, so that an impatient user gets out.
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
    """Let a SIGHUP, as of a closed terminal, be a SIGTERM; one that is ignored (nohup) stays so."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
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
