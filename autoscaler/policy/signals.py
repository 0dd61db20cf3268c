"""The input of a decision about one pool: arrivals, backlog, replicas, and the age of each. Pure.

Tokens are weighted: an output token counts as `output_weight` prompt tokens, as engines measure it
(`batcher.policy.compute_model`). Times are Unix seconds; ages and durations are seconds.
"""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

BULK_BUCKETS_MAX: Final = 64
"""Buckets of bulk backlog of a pool: octaves of the time to the deadline, by endpoint."""

REPLICAS_MAX: Final = 10_000
"""Replicas of a pool."""

STALE_S: Final = 3.0
"""Age from which an input is stale: publishers send one each second."""

RECENT_S: Final = 8.0
FAST_S: Final = 30.0
SLOW_S: Final = 300.0
"""Time constants of the means of arrivals: two follow a burst, one remembers it."""

InputName = Literal["online", "bulk", "replicas"]
INPUTS: Final[tuple[InputName, ...]] = ("online", "bulk", "replicas")


class InvalidSignalError(ValueError):
    """An input is negative, not finite, or beyond its limit; no decision is made from it."""


class ReplicaState(StrEnum):
    """What a replica does."""

    STARTING = "starting"  # ordered and not ready: counts as capacity
    WARM = "warm"
    DRAINING = "draining"  # takes no new work, and still uses its GPU
    ASLEEP = "asleep"  # of the warm pool: loaded, out of the group, no capacity until it is woken


class ReplicaSignal(Struct, frozen=True, kw_only=True):
    """One replica of the pool."""

    replica_id: str
    state: ReplicaState
    gpu_type: str
    zone: str
    spot: bool = False
    tokens_per_s: float = 0.0  # at the SLO; 0: not measured yet
    load_tokens: float = 0.0  # of work that it was sent and has not ended
    has_suspects: bool = False  # suspect items: it must not be removed
    standby: bool = False  # ordered for the warm pool and not woken: it starts out of the group


class BulkBucket(Struct, frozen=True, kw_only=True):
    """Bulk backlog of one octave of the time to the deadline and one endpoint."""

    deadline_s: float  # the earliest of the bucket
    endpoint: str
    prompt_tokens: float
    output_tokens: float  # expected, before correction


class ArrivalRates(Struct, frozen=True, kw_only=True):
    """Means of online arrivals, advanced by `advance_arrivals`."""

    at_s: float
    recent_per_s: float = 0.0  # tokens/s, EWMA of 8 s
    fast_per_s: float = 0.0  # tokens/s, EWMA of 30 s
    slow_per_s: float = 0.0  # tokens/s, EWMA of 5 min
    variance_per_s: float = 0.0  # tokens²/s: of the tokens that arrive in 1 s
    last_arrival_s: float | None = None
    counted_tokens: float = 0.0  # arrived since `at_s` and not in the means: no time has passed


class PoolSignals(Struct, frozen=True, kw_only=True, dict=True):  # `dict` for cached properties
    """What is known of a pool when a decision is made."""

    arrivals: ArrivalRates
    online_backlog_tokens: float = 0.0
    bulk: tuple[BulkBucket, ...] = ()
    replicas: tuple[ReplicaSignal, ...] = ()
    rate_tokens_per_s: float = 0.0  # what the pool serves
    cold_start_s: Mapping[str, float] = field(default_factory=dict)  # p95 by GPU type
    correction: Mapping[str, float] = field(default_factory=dict)  # measured/estimated, by endpoint
    output_weight: float = 1.0
    uploads: int = 0  # input files that are being uploaded for the pool
    calls: int = 0  # that wait for a first replica or were refused since the last decision
    next_deadline_s: float | None = None  # of a job whose items may be emitted before it
    age_s: Mapping[InputName, float] = field(default_factory=dict)  # of each input; none: 0

    def stale_inputs(self) -> tuple[InputName, ...]:
        """Return the inputs that are older than `STALE_S`."""
        return tuple(name for name in INPUTS if self.age_s.get(name, 0.0) > STALE_S)

    @cached_property
    def live_replicas(self) -> tuple[ReplicaSignal, ...]:
        """The replicas that count as capacity: warm ones and those that start."""
        warm, starting = ReplicaState.WARM, ReplicaState.STARTING
        return tuple(
            [
                one
                for one in self.replicas
                if (state := one.state) is warm or (state is starting and not one.standby)
            ]
        )

    @cached_property
    def standby_replicas(self) -> tuple[ReplicaSignal, ...]:
        """The replicas of the warm pool: those that sleep and those that start for it."""
        return tuple(standby_of(self.replicas))


def standby_of(replicas: Iterable[ReplicaSignal]) -> list[ReplicaSignal]:
    """Return the replicas that are in the warm pool, where they are no capacity."""
    asleep, starting = ReplicaState.ASLEEP, ReplicaState.STARTING
    return [
        one
        for one in replicas
        if (state := one.state) is asleep or (state is starting and one.standby)
    ]


def advance_arrivals(rates: ArrivalRates, tokens: float, now_s: float) -> ArrivalRates:
    """Return the means after `tokens` arrived between `rates.at_s` and `now_s`.

    If the clock did not advance or went back, the tokens are kept for the next advance. Raises
    InvalidSignalError for tokens or times that are negative or not finite.
    """
    checked("online tokens", tokens)
    checked("the time", now_s)
    elapsed_s = now_s - rates.at_s
    arrived = rates.counted_tokens + tokens
    last_s = max(now_s, rates.at_s) if tokens > 0 else rates.last_arrival_s
    if elapsed_s <= 0:
        return ArrivalRates(
            at_s=rates.at_s,
            recent_per_s=rates.recent_per_s,
            fast_per_s=rates.fast_per_s,
            slow_per_s=rates.slow_per_s,
            variance_per_s=rates.variance_per_s,
            last_arrival_s=last_s,
            counted_tokens=arrived,
        )
    # A squared deviation over the interval's length estimates the variance of one second. It is
    # that from the mean of the last seconds: from a slower one, a rise would count as noise.
    deviation = (arrived - rates.recent_per_s * elapsed_s) ** 2 / elapsed_s
    return ArrivalRates(
        at_s=now_s,
        recent_per_s=_mean(rates.recent_per_s, arrived / elapsed_s, elapsed_s / RECENT_S),
        fast_per_s=_mean(rates.fast_per_s, arrived / elapsed_s, elapsed_s / FAST_S),
        slow_per_s=_mean(rates.slow_per_s, arrived / elapsed_s, elapsed_s / SLOW_S),
        variance_per_s=_mean(rates.variance_per_s, deviation, elapsed_s / SLOW_S),
        last_arrival_s=last_s,
    )


def check_signals(signals: PoolSignals) -> None:
    """Raise InvalidSignalError, which names the first input that is out of its limits."""
    if len(signals.bulk) > BULK_BUCKETS_MAX:
        raise InvalidSignalError(f"{len(signals.bulk)} buckets; at most {BULK_BUCKETS_MAX}.")
    if len(signals.replicas) > REPLICAS_MAX:
        raise InvalidSignalError(f"{len(signals.replicas)} replicas; at most {REPLICAS_MAX}.")
    rates = signals.arrivals
    checked("the recent rate", rates.recent_per_s)
    checked("the fast rate", rates.fast_per_s)
    checked("the slow rate", rates.slow_per_s)
    checked("the variance of arrivals", rates.variance_per_s)
    checked("the online backlog", signals.online_backlog_tokens)
    checked("the pool's rate", signals.rate_tokens_per_s)
    checked("the output weight", signals.output_weight)
    checked("uploads", signals.uploads)
    checked("calls", signals.calls)
    for bucket in signals.bulk:
        checked("bulk prompt tokens", bucket.prompt_tokens)
        checked("bulk output tokens", bucket.output_tokens)
        checked("a deadline", bucket.deadline_s)
    for replica in signals.replicas:
        checked("a replica's rate", replica.tokens_per_s)
        checked("a replica's load", replica.load_tokens)
    for values in (signals.cold_start_s, signals.correction, signals.age_s):
        for name, value in values.items():
            checked(str(name), value)


def without_amounts(signals: PoolSignals) -> PoolSignals:
    """Return the replicas alone, without what they measured; every input counts as stale."""
    return PoolSignals(
        arrivals=ArrivalRates(at_s=signals.arrivals.at_s),
        replicas=tuple(replace(one, tokens_per_s=0.0, load_tokens=0.0) for one in signals.replicas),
        age_s=dict.fromkeys(INPUTS, 2 * STALE_S),
    )


def checked(name: str, value: float) -> float:
    """Return a value that is finite and not negative. Raises InvalidSignalError."""
    if not (math.isfinite(value) and 0 <= value <= _VALUE_MAX):
        raise InvalidSignalError(f"{name}: {value} is no number from 0 to {_VALUE_MAX:.0e}.")
    return value


_VALUE_MAX: Final = 1e18  # squares and sums of such numbers are finite


def _mean(mean: float, newest: float, time_constants: float) -> float:
    """Return an exponentially weighted mean for samples at irregular times."""
    return mean + (newest - mean) * -math.expm1(-time_constants)
