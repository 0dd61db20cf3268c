"""The thread supervisor of a role: each thread repeats a step until the role stops."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from core.clock import Clock
from storage.postgres.engines import DATABASE_UNAVAILABLE

_LOG = logging.getLogger(__name__)
_DATABASE_RETRY_S: Final = 0.5


class SupervisedThreads:
    """Named threads that share one `stop` event.

    A step that finds Postgres unavailable is retried for `away_s_max` seconds. Any other failure
    stops the role: the supervisor sets `stop`, and `join` raises the first failure.
    """

    def __init__(self, stop: threading.Event, *, away_s_max: float, clock: Clock) -> None:
        """`stop` ends every thread, whether the role or a failure sets it."""
        self._stop = stop
        self._away_s_max = away_s_max
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None

    def start(self, name: str, step: Callable[[], None], pause: Callable[[], object]) -> None:
        """Start a thread that runs `step` and then `pause` in a loop."""
        thread = threading.Thread(
            target=self._run, args=(name, step, pause), name=name, daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def start_periodic(self, interval_s: float, name: str, step: Callable[[], None]) -> None:
        """Start a thread that runs `step` and waits `interval_s` before the next run."""
        self.start(name, step, lambda: self._stop.wait(interval_s))

    def join(self, timeout_s: float) -> None:
        """Wait for the threads after `stop`. Raises the failure that stopped the role, if any."""
        deadline = self._clock.monotonic_s() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock.monotonic_s()))
        if self._failure is not None:
            raise self._failure

    def _run(self, name: str, step: Callable[[], None], pause: Callable[[], object]) -> None:
        unavailable_since_s: float | None = None
        while not self._stop.is_set():
            try:
                step()
                pause()
                unavailable_since_s = None
            except DATABASE_UNAVAILABLE as failure:
                now_s = self._clock.monotonic_s()
                unavailable_since_s = now_s if unavailable_since_s is None else unavailable_since_s
                if now_s - unavailable_since_s > self._away_s_max:
                    self._fail(name, failure)
                    return
                _LOG.warning(
                    "Postgres is away", extra={"step": name, "kind": type(failure).__name__}
                )
                self._stop.wait(_DATABASE_RETRY_S)
            except Exception as failure:  # noqa: BLE001  the thread's loop: a failure must end the role
                self._fail(name, failure)
                return

    def _fail(self, name: str, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._stop.set()
        _LOG.error("a thread failed", extra={"step": name}, exc_info=failure)
