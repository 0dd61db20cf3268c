"""How busy a process is: its CPU time, and how late its event loop runs callbacks."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

TICK_S: Final = 0.05
"""Time between two measurements of the event loop: 20 a second."""

_SAMPLES_MAX: Final = 200  # more than a reader that is late by some seconds leaves

_P95: Final = 0.95


class ProcessLoad(NamedTuple):
    """The load of a process since the last reading."""

    busy: float  # part of a core that the process used, 0 to 1
    loop_lag_s: float  # p95
    seconds: float  # since the last reading


def percentile_95(samples: Iterable[float]) -> float:
    """Return the 95th percentile, by the nearest rank; 0 without samples."""
    ordered = sorted(samples)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * _P95))]


class LoadMeter:
    """Measures the load of this process. Used on its event loop."""

    def __init__(
        self,
        monotonic_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        """`cpu_s` returns the CPU time of all threads of the process."""
        self._monotonic_s, self._cpu_s = monotonic_s, cpu_s
        self._read_s, self._read_cpu_s = monotonic_s(), cpu_s()
        self._lags_s: deque[float] = deque(maxlen=_SAMPLES_MAX)

    async def run(self) -> None:
        """Measure the event loop until cancelled."""
        while True:
            before_s = self._monotonic_s()
            await asyncio.sleep(TICK_S)
            self.add_lag(self._monotonic_s() - before_s - TICK_S)

    def add_lag(self, lag_s: float) -> None:
        """Add one measurement of how late a callback ran."""
        self._lags_s.append(max(0.0, lag_s))

    def read(self) -> ProcessLoad:
        """Return the load since the last reading, or since the start."""
        now_s, cpu_s = self._monotonic_s(), self._cpu_s()
        seconds, used_s = now_s - self._read_s, cpu_s - self._read_cpu_s
        self._read_s, self._read_cpu_s = now_s, cpu_s
        lag_s = percentile_95(self._lags_s)
        self._lags_s.clear()
        busy = min(1.0, max(0.0, used_s / seconds)) if seconds > 0 else 0.0
        return ProcessLoad(busy, lag_s, seconds)
