"""The threads that read and write objects for the event loop."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_LAST_S: Final = 1.0
"""What is under way at the end has so long; what is left behind then is swept as after a kill."""


class ObjectThreadPool(ThreadPoolExecutor):
    """The default executor of the loop, which waits for its threads when it is closed.

    A store that hangs would keep the process for as long as it does.
    """

    def __init__(self, count: int) -> None:
        """`count` threads, which begin as they are needed."""
        super().__init__(count, thread_name_prefix="objects")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `ThreadPoolExecutor`; its wait has an end."""
        how = {"wait": wait, "cancel_futures": cancel_futures}
        ending = threading.Thread(target=super().shutdown, kwargs=how, daemon=True)
        ending.start()
        ending.join(_LAST_S)
