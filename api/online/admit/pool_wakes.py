"""How long a pool without replicas takes until it serves, from what the autoscaler writes.

    a replica starts    start_s - elapsed, 0.5 s at least; late: 0.5 s + the time that it is late
    one is being woken  wake_s; no more after the time of two wakes
    nothing starts yet  wake_s with a replica asleep, else start_s, plus the time to decide

The earliest counts. `elapsed` is by the autoscaler's clock until its record, then by the monotonic
clock of this process. The age of a record at its receipt is by the wall clock of this host: with a
clock that differs by `FRESH_S` no record counts, and calls are refused as without an autoscaler.
"""

import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from core.clock import Clock
from core.errors import RecordUnreadableError, SchemaTooNewError
from topics.records.codec import decode, kind_of
from topics.records.kinds import KINDS
from topics.records.received_record import ReceivedRecord
from topics.records.scaling import OVERRIDE_KEY, PoolScaling, ScalingOverride

_LOG = logging.getLogger(__name__)

FRESH_S: Final = 15.0
"""Age from which a record does not count: the autoscaler writes each every 5 s."""

DECISION_S: Final = 1.5
"""Time from a wake request to the order: the autoscaler decides each second."""

WAIT_S_MIN: Final = 0.5
WAIT_S_MAX: Final = 86_400.0

POOLS_MAX: Final = 10_000
"""Pools whose records are kept; those of further ones are ignored."""

_ZERO_REASONS: Final = frozenset({"max", "quota", "budget"})
"""Reasons of a target of 0 that work does not change."""

_LASTING_FAILURES: Final = frozenset(
    {"actuator_denied", "actuator_missing", "foreign_scaler", "unknown_pool"}
)
"""Failures of an actuator that a person has to end: until then nothing starts."""


@dataclass(frozen=True, slots=True)
class PoolStart:
    """What starts in a pool that may be woken."""

    start_s: float  # p95 of a start
    wake_s: float  # p95 of a wake
    elapsed_s: float | None = None  # since the oldest running start; None: none runs
    is_waking: bool = False  # a replica in standby is ordered to join
    has_standby: bool = False  # a replica sleeps


def predicted_wait_s(start: PoolStart) -> float:
    """Return the predicted seconds until a replica serves, from 0.5 to a day; never NaN."""
    wake_s, start_s = bounded_s(start.wake_s), bounded_s(start.start_s)
    waits_s = []
    if start.elapsed_s is not None:
        left_s = start_s - bounded_s(start.elapsed_s)
        waits_s.append(max(WAIT_S_MIN, left_s) if left_s >= 0 else WAIT_S_MIN - left_s)
    if start.is_waking:
        waits_s.append(wake_s)
    elif start.has_standby:
        waits_s.append(wake_s + DECISION_S)
    if not waits_s:
        waits_s.append(start_s + DECISION_S)
    return min(WAIT_S_MAX, max(WAIT_S_MIN, min(waits_s)))


def bounded_s(seconds: float) -> float:
    """Return a duration of a record within 0 and a day; NaN and negative ones are 0."""
    return min(WAIT_S_MAX, seconds) if seconds > 0 else 0.0


class _Bounds(msgspec.Struct):
    max_replicas: int


class _Decision(msgspec.Struct):
    """What is read of `autoscaler.policy.scaling_decision.ScalingDecision`."""

    reason: str
    bounds: _Bounds


_DECISION: Final = msgspec.json.Decoder(_Decision)


@dataclass(frozen=True, slots=True)
class _Known:
    """The newest record of a pool."""

    record: PoolScaling
    received_s: float  # monotonic
    age_s: float  # at its receipt
    is_held: bool  # work does not raise the target
    woken_s: dict[str, float]  # monotonic: since when `awake` names each replica

    def is_waking(self, now_s: float) -> bool:
        """Whether a replica joins now: `awake` goes on naming it when it serves, or has ended."""
        wake_s = bounded_s(self.record.wake_s)
        return any(now_s - at_s < 2 * wake_s + DECISION_S for at_s in self.woken_s.values())


class PoolWakes:
    """The newest record of the highest epoch of each pool.

    One thread calls `apply_records`; any thread may call the other methods.
    """

    def __init__(self, clock: Clock) -> None:
        """Know no autoscaler until the first record."""
        self._clock = clock
        self._pools: dict[str, _Known] = {}
        self._overrides: dict[str, ScalingOverride] = {}
        self.has_autoscaler = False
        """Whether an autoscaler has ever run in this installation."""

    def apply_records(self, records: list[ReceivedRecord]) -> None:
        """Apply records of `scaling` that arrived now; one that cannot be read is ignored."""
        for record in records:
            self.has_autoscaler = True
            if record.value is None:
                self._remove((record.key or b"").decode(errors="replace"))
                continue
            try:
                kind = kind_of(record.headers)
                if kind == KINDS[PoolScaling]:
                    self._apply(decode(PoolScaling, record.value, record.headers))
                elif kind == KINDS[ScalingOverride]:
                    override = decode(ScalingOverride, record.value, record.headers)
                    if override.pool in self._overrides or len(self._overrides) < POOLS_MAX:
                        self._overrides[override.pool] = override
            except (RecordUnreadableError, SchemaTooNewError):
                _LOG.warning("a record is unreadable", extra={"topic": record.topic})

    def find(self, pool: str) -> PoolStart | None:
        """Return what starts in a pool; None if its autoscaler is silent or does not wake it.

        It does not wake a pool that is paused or only observed, whose maximum is 0, that a quota or
        a budget keeps at 0, or whose actuator has failed for good. Nothing is known of a pool whose
        record has no time of a start.
        """
        known, now_s = self._pools.get(pool), self._clock.monotonic_s()
        if known is None or known.is_held or known.record.mode != "active":
            return None
        since_s = now_s - known.received_s
        if known.age_s + since_s >= FRESH_S or self._is_overridden(pool):
            return None
        record = known.record
        if record.failure in _LASTING_FAILURES or not record.start_s > 0:
            return None
        elapsed_s = None
        if record.waking_since_s > 0:
            at_record_s = bounded_s(record.at_s - record.waking_since_s)
            elapsed_s = at_record_s + known.age_s + since_s
        return PoolStart(
            start_s=record.start_s,
            wake_s=record.wake_s,
            elapsed_s=elapsed_s,
            is_waking=known.is_waking(now_s),
            has_standby=record.asleep > 0,
        )

    def predicted_wait_s(self, pool: str) -> float | None:
        """Return the predicted seconds until a pool serves; None: nobody will wake it."""
        start = self.find(pool)
        return None if start is None else predicted_wait_s(start)

    def _apply(self, record: PoolScaling) -> None:
        before = self._pools.get(record.pool)
        if before is None and len(self._pools) >= POOLS_MAX:
            return
        if before is not None and record.epoch < before.record.epoch:
            return  # of an owner that was replaced
        age_s = bounded_s(self._clock.wall_s() - record.at_s)
        now_s = self._clock.monotonic_s()
        before_s = {} if before is None else before.woken_s
        woken_s = {name: before_s.get(name, now_s - age_s) for name in record.awake}
        is_held = _stays_at_zero(record)
        self._pools[record.pool] = _Known(record, now_s, age_s, is_held, woken_s)

    def _remove(self, key: str) -> None:
        if key.startswith(OVERRIDE_KEY):
            self._overrides.pop(key.removeprefix(OVERRIDE_KEY), None)
        else:
            self._pools.pop(key, None)

    def _is_overridden(self, pool: str) -> bool:
        """Whether an operator has paused the pool or set it to 0."""
        override = self._overrides.get(pool)
        if override is None or not override.is_in_force(self._clock.wall_s()):
            return False
        return override.mode == "paused" or (override.mode == "set" and override.replicas <= 0)


def _stays_at_zero(record: PoolScaling) -> bool:
    """Whether the target is 0 whatever work comes; False for a decision that cannot be read."""
    try:
        decision = _DECISION.decode(record.decision)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if decision.bounds.max_replicas <= 0:
        return True
    return record.target <= 0 and decision.reason in _ZERO_REASONS
