"""How a role learns that it should stop: SIGTERM and SIGINT set one event."""

import signal
import threading


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets. Call once, from the main thread.

    A second SIGINT falls through to Python's default, so that an impatient user gets out.
    """
    stop = threading.Event()

    def handle(signal_number: int, _frame: object) -> None:
        stop.set()
        if signal_number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop
