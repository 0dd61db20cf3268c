"""The thread pool for the object store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_SHUTDOWN_S: Final = 1.0
"""Time for running calls at shutdown. What is abandoned then is swept, as after a crash."""


class ObjectThreadPool(ThreadPoolExecutor):
    """The default executor of the event loop, with a shutdown that does not wait for ever.

    Otherwise a hanging store would keep the process alive.
    """

    def __init__(self, count: int) -> None:
        """Up to `count` threads, started as they are needed."""
        super().__init__(count, thread_name_prefix="objects")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `ThreadPoolExecutor`; waits for at most _SHUTDOWN_S."""
        options = {"wait": wait, "cancel_futures": cancel_futures}
        ending = threading.Thread(target=super().shutdown, kwargs=options, daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_S)
