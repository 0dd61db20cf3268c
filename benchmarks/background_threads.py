"""Threads that work for the length of a block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def background_threads(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run each function in a thread of its own; at the end of the block, set its event and wait."""
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(stop,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
