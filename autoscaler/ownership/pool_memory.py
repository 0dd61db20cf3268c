"""What the owner remembers of a pool, as JSON in `PoolScaling.memory`: its successor goes on.

Memory of an unknown version, or that cannot be read, counts as none: the pool then begins with a
first history, which lowers nothing for 300 s.
"""

import logging
import math
from typing import Final

import msgspec
from msgspec import Struct

from autoscaler.policy.scaling_history import PoolHistory
from autoscaler.policy.scaling_rules import POOL_REPLICAS_MAX
from autoscaler.policy.signals import ArrivalRates, InvalidSignalError, checked

VERSION: Final = 1
SAMPLES_MAX: Final = 50
"""Measured starts that are kept of a GPU type: p95 is the third longest of them."""

START_S_MAX: Final = 3600.0
"""Longest start and wake that are taken as measured: predictions stay within an hour."""

OPEN_STARTS_MAX: Final = 200
"""Entries of open starts that are kept, each of replicas of one kind and time."""

_LOG = logging.getLogger(__name__)
_P95: Final = 0.95


class OpenStart(Struct, frozen=True, kw_only=True):
    """Replicas of one kind that were ordered and gave no credit yet."""

    at_s: float
    gpu_type: str
    zone: str
    spot: bool
    count: int = 1
    replica_id: str = ""  # of the one that was seen; empty: none was seen yet
    is_measured: bool = True  # False: nobody knows when the platform began


class StartTimes(Struct, frozen=True, kw_only=True):
    """Measured seconds from an order to the first credit; the newest `SAMPLES_MAX` of each."""

    starts_s: dict[str, tuple[float, ...]] = {}  # by GPU type
    wakes_s: tuple[float, ...] = ()

    def with_start(self, gpu_type: str, seconds: float) -> "StartTimes":
        """Return the times with one more start."""
        known = self.starts_s.get(gpu_type, ())
        newest = (*known, min(START_S_MAX, max(0.0, seconds)))[-SAMPLES_MAX:]
        return StartTimes(starts_s={**self.starts_s, gpu_type: newest}, wakes_s=self.wakes_s)

    def with_wake(self, seconds: float) -> "StartTimes":
        """Return the times with one more wake."""
        newest = (*self.wakes_s, min(START_S_MAX, max(0.0, seconds)))[-SAMPLES_MAX:]
        return StartTimes(starts_s=self.starts_s, wakes_s=newest)

    def p95_s(self) -> dict[str, float]:
        """Return the 95th percentile of the starts by GPU type."""
        return {name: percentile_95(times) for name, times in self.starts_s.items() if times}


class PoolMemory(Struct, frozen=True, kw_only=True):
    """The state of a pool between two decisions."""

    version: int = VERSION
    history: PoolHistory
    arrivals: ArrivalRates
    times: StartTimes = StartTimes()
    correction: dict[str, float] = {}  # measured/estimated output tokens, by endpoint
    open_starts: tuple[OpenStart, ...] = ()
    open_wakes: dict[str, float] = {}  # when a replica was woken that gave no credit yet, by id
    unavailable_spot: tuple[tuple[str, str, float], ...] = ()  # GPU type, zone, and until when


def percentile_95(values: tuple[float, ...]) -> float:
    """Return the 95th percentile (nearest rank) of values, of which there is one at least."""
    return sorted(values)[math.ceil(_P95 * len(values)) - 1]


def encode_memory(memory: PoolMemory) -> bytes:
    """Return the memory as JSON."""
    return msgspec.json.encode(memory)


def decode_memory(pool: str, data: bytes) -> PoolMemory | None:
    """Return the memory in a record; None, with a warning, if it cannot be used."""
    if not data:
        return None
    try:
        memory = msgspec.json.decode(data, type=PoolMemory)
        _check(memory)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidSignalError) as error:
        _LOG.warning(
            "the memory of a pool is not readable", extra={"pool": pool, "reason": str(error)}
        )
        return None
    return memory


def _check(memory: PoolMemory) -> None:
    if memory.version != VERSION:
        raise InvalidSignalError(f"version {memory.version}; this release reads {VERSION}")
    history, rates = memory.history, memory.arrivals
    if not 0 <= history.target <= POOL_REPLICAS_MAX:
        raise InvalidSignalError(f"target {history.target}")
    numbers = [history.started_s, history.at_s, history.last_work_s, history.veto.until_s]
    numbers += [rates.at_s, rates.recent_per_s, rates.fast_per_s, rates.slow_per_s]
    numbers += [rates.variance_per_s, rates.counted_tokens]
    numbers += [*memory.correction.values(), *memory.times.wakes_s]
    numbers += [one for times in memory.times.starts_s.values() for one in times]
    numbers += [one.at_s for one in memory.open_starts]
    numbers += [until_s for _, _, until_s in memory.unavailable_spot]
    numbers += [exact for _, exact in history.peaks]
    for number in numbers:
        checked("memory", number)
