"""The threads of a role: each repeats a step until the role stops; one that fails stops it."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from core.clock import Clock
from storage.postgres.engines import DATABASE_AWAY

_LOG = logging.getLogger(__name__)
_AWAY_PAUSE_S: Final = 0.5


class SupervisedThreads:
    """Named threads that share one `stop`.

    A step that finds Postgres away is tried again for a bounded time; any other failure is the
    role's: it sets `stop`, and `raise_failure` tells.
    """

    def __init__(self, stop: threading.Event, *, away_s_max: float, clock: Clock) -> None:
        """`stop` is set by whoever ends the role."""
        self._stop = stop
        self._away_s_max = away_s_max
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None

    def start(self, name: str, step: Callable[[], None], pause: Callable[[], object]) -> None:
        """Start a thread that runs `step`, then `pause`, again and again."""
        thread = threading.Thread(
            target=self._run, args=(name, step, pause), name=name, daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def start_periodic(self, interval_s: float, name: str, step: Callable[[], None]) -> None:
        """Start a thread that runs `step` with `interval_s` between two runs."""
        self.start(name, step, lambda: self._stop.wait(interval_s))

    def join(self, timeout_s: float) -> None:
        """Wait for the threads after `stop`; raises the failure that stopped the role, if any."""
        deadline = self._clock.monotonic_s() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock.monotonic_s()))
        if self._failure is not None:
            raise self._failure

    def _run(self, name: str, step: Callable[[], None], pause: Callable[[], object]) -> None:
        away_since_s: float | None = None
        while not self._stop.is_set():
            try:
                step()
                pause()
                away_since_s = None
            except DATABASE_AWAY as failure:
                now_s = self._clock.monotonic_s()
                away_since_s = now_s if away_since_s is None else away_since_s
                if now_s - away_since_s > self._away_s_max:
                    self._fail(name, failure)
                    return
                _LOG.warning(
                    "Postgres is away", extra={"step": name, "kind": type(failure).__name__}
                )
                self._stop.wait(_AWAY_PAUSE_S)
            except Exception as failure:  # noqa: BLE001  the process loop
                self._fail(name, failure)
                return

    def _fail(self, name: str, failure: Exception) -> None:
        self._failure = self._failure or failure
        self._stop.set()
        _LOG.error("a thread failed", extra={"step": name}, exc_info=failure)
