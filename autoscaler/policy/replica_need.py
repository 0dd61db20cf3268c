"""How many replicas a pool needs for its arrivals and its backlog, term by term. Pure.

With μ the tokens/s of one replica at the SLO, ρ the utilisation and c the p95 of a cold start:

    online   λ / (ρ μ),  λ = max(EWMA 30 s, EWMA 5 min, rise)
    waiting  online backlog / (μ T_on)
    bulk     Σ over buckets: tokens / (μ max(T_min, deadline − now − c))
    burst    z √(v τ) / (μ (τ + T_on)),  τ = min(c, T_on),  v the variance of tokens in 1 s

The rise is the EWMA of 8 s less two of its standard deviations, √(v / 16 s): so a burst counts
sooner, and noise does not count as one.

`burst` are tokens above the mean. In a window of t seconds, up to a cold start, z √(v t) of them
arrive and are to be served within t + T_on; that needs the most replicas at t = τ. Sources:
arrivals and backlog in tokens, TokenScale (2025); deadlines of batch work as slack, Chiron (2025);
peaks within the time of a start, InferLine (SoCC 2020), which bounds them by traffic envelopes.
"""

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from autoscaler.policy.scaling_rules import ScalingRules
from autoscaler.policy.signals import (
    RECENT_S,
    ArrivalRates,
    BulkBucket,
    InputName,
    PoolSignals,
    ReplicaState,
)

CORRECTION_MIN: Final = 0.1
CORRECTION_MAX: Final = 10.0
"""Bounds of measured/estimated output tokens: a few results cannot turn the need around."""

RATE_DEVIATION_MAX: Final = 10.0
"""Factor between a measured rate and the curve: an absurd measurement is not a wrong need."""

LEARNED_RATE_MIN: Final = 1.0
LEARNED_RATE_MAX: Final = 1e8
"""Bounds of a measured rate, in tokens/s, where there is no curve to compare it with."""

_TERM_MAX: Final = 1e9  # replicas; sums of terms stay exact enough and finite
_RISE_DEVIATIONS: Final = 2.0  # 95 % of noise is within
_ROUNDING: Final = 1e-6  # of a replica: sums of terms are not exact


class NeedInputs(Struct, frozen=True, kw_only=True):
    """The values in the formulas of the terms, to show them. Of a role, tokens are its work."""

    arrivals_per_s: float = 0.0  # λ
    utilisation: float = 1.0  # ρ
    backlog_tokens: float = 0.0
    drain_s: float = 0.0  # T_on
    bulk_tokens: float = 0.0  # weighted and corrected, of all buckets
    bulk_deadline_s: float | None = None  # the earliest of the buckets, Unix time
    burst_tokens: float = 0.0  # z √(v τ)
    burst_s: float = 0.0  # τ; 0 beside a burst: an earlier release had c, to be served in T_on


class ReplicaNeed(Struct, frozen=True, kw_only=True):
    """Each term in replicas, and what they were computed with."""

    online: float = 0.0
    waiting: float = 0.0
    bulk: float = 0.0
    burst: float = 0.0
    replica_tokens_per_s: float  # μ
    cold_start_s: float  # c
    stale: tuple[InputName, ...] = ()
    inputs: NeedInputs = NeedInputs()

    @property
    def exact(self) -> float:
        """The sum of the terms, before it is rounded up."""
        return self.online + self.waiting + self.bulk + self.burst

    @property
    def replicas(self) -> int:
        """The sum rounded up: 0 only if there is no work."""
        exact = self.exact
        return 1 if 0 < exact < 1 else max(0, math.ceil(exact - _ROUNDING))


def replica_need(
    rules: ScalingRules, signals: PoolSignals, now_s: float, previous: ReplicaNeed | None
) -> ReplicaNeed:
    """Return the terms now. A term whose input is stale is not below that of `previous`."""
    mu = replica_rate(rules, signals, previous)
    cold_start_s = predicted_start_s(rules, signals)
    burst_s, drain_s = min(cold_start_s, rules.online_drain_s), rules.online_drain_s
    rate = burst_tokens = 0.0
    if not is_idle_online(rules, signals, now_s):
        rates = signals.arrivals
        rate = max(rates.fast_per_s, rates.slow_per_s, certain_rise_per_s(rates))
        burst_tokens = rules.burst_factor * math.sqrt(rates.variance_per_s * burst_s)
    need = ReplicaNeed(
        online=_replicas(rate, rules.utilisation * mu),
        waiting=_replicas(signals.online_backlog_tokens, mu * drain_s),
        bulk=_bulk(rules, signals, now_s + cold_start_s, mu),
        burst=_replicas(burst_tokens, mu * (burst_s + drain_s)),
        replica_tokens_per_s=mu,
        cold_start_s=cold_start_s,
        stale=signals.stale_inputs(),
        inputs=NeedInputs(
            arrivals_per_s=rate,
            utilisation=rules.utilisation,
            backlog_tokens=signals.online_backlog_tokens,
            drain_s=drain_s,
            bulk_tokens=math.fsum(_bulk_tokens(signals, one) for one in signals.bulk),
            bulk_deadline_s=min((one.deadline_s for one in signals.bulk), default=None),
            burst_tokens=burst_tokens,
            burst_s=burst_s,
        ),
    )
    return need if previous is None else _not_below(need, previous)


def replica_rate(
    rules: ScalingRules, signals: PoolSignals, previous: ReplicaNeed | None = None
) -> float:
    """Return μ: the mean of the replicas that count as capacity, in tokens/s, above 0.

    A replica that measured nothing has the rate of its type's curve, and a measurement counts
    within `RATE_DEVIATION_MAX` of the curve. A pool without replicas has the curve of the first
    type of its rules, which operators list in the order they prefer.

    A learned type has no curve: its replicas that measured nothing, and a pool without replicas,
    have the rate of `previous`, and measurements count within `LEARNED_RATE_MIN` and `_MAX`.
    """
    if rules.gpu_types[0].is_learned:
        return _learned_rate(rules, signals, previous)
    curves = {one.name: one.tokens_per_s for one in rules.gpu_types}
    first = rules.gpu_types[0].tokens_per_s
    rates = []
    for one in signals.live_replicas:
        curve = curves.get(one.gpu_type, first)
        is_measured = one.tokens_per_s > 0 and one.state is ReplicaState.WARM
        measured = one.tokens_per_s if is_measured else curve
        rates.append(min(curve * RATE_DEVIATION_MAX, max(curve / RATE_DEVIATION_MAX, measured)))
    return math.fsum(rates) / len(rates) if rates else first


def _learned_rate(rules: ScalingRules, signals: PoolSignals, previous: ReplicaNeed | None) -> float:
    measured = [
        min(LEARNED_RATE_MAX, max(LEARNED_RATE_MIN, one.tokens_per_s))
        for one in signals.live_replicas
        if one.tokens_per_s > 0 and one.state is ReplicaState.WARM
    ]
    if measured:
        return math.fsum(measured) / len(measured)
    return rules.gpu_types[0].tokens_per_s if previous is None else previous.replica_tokens_per_s


def predicted_start_s(rules: ScalingRules, signals: PoolSignals) -> float:
    """Return c: the longest p95 of a cold start among the types of the policy."""
    return max(signals.cold_start_s.get(one.name, one.cold_start_s) for one in rules.gpu_types)


def certain_rise_per_s(rates: ArrivalRates) -> float:
    """Return the mean of the last seconds less what its noise explains, in tokens/s.

    A mean of time constant τ over values of variance v in 1 s has the variance v / (2 τ).
    """
    deviation = math.sqrt(rates.variance_per_s / (2 * RECENT_S))
    return max(0.0, rates.recent_per_s - _RISE_DEVIATIONS * deviation)


def is_idle_online(rules: ScalingRules, signals: PoolSignals, now_s: float) -> bool:
    """Return whether no call arrived for the idle time: means decay and never reach 0."""
    last_s = signals.arrivals.last_arrival_s
    return last_s is None or now_s - last_s >= rules.idle_s


def has_work(rules: ScalingRules, signals: PoolSignals, now_s: float) -> bool:
    """Return whether the pool had arrivals within its idle time, or has work now."""
    return _has_work_now(signals) or not is_idle_online(rules, signals, now_s)


def last_work_s(signals: PoolSignals, now_s: float) -> float:
    """Return when the pool last had work, as far as the signals tell; 0: they tell of none.

    The idle time counts from the last arrival, and not from the end of the time in which it counts.
    """
    is_serving = any(one.load_tokens > 0 for one in signals.live_replicas)
    if is_serving or _has_work_now(signals):
        return now_s
    return min(now_s, signals.arrivals.last_arrival_s or 0.0)


def _has_work_now(signals: PoolSignals) -> bool:
    """Return whether work waits, or an upload or a call will become such work."""
    return (
        signals.online_backlog_tokens > 0
        or signals.uploads > 0
        or signals.calls > 0
        or any(one.prompt_tokens + one.output_tokens > 0 for one in signals.bulk)
    )


def _bulk(rules: ScalingRules, signals: PoolSignals, ready_s: float, mu: float) -> float:
    terms = []
    for bucket in signals.bulk:
        tokens = _bulk_tokens(signals, bucket)
        left_s = max(rules.bulk_drain_min_s, bucket.deadline_s - ready_s)
        terms.append(_replicas(tokens, mu * left_s))
    return min(_TERM_MAX, math.fsum(terms))


def _bulk_tokens(signals: PoolSignals, bucket: BulkBucket) -> float:
    correction = signals.correction.get(bucket.endpoint, 1.0)
    correction = min(CORRECTION_MAX, max(CORRECTION_MIN, correction))
    return bucket.prompt_tokens + signals.output_weight * correction * bucket.output_tokens


def _replicas(tokens: float, tokens_of_one: float) -> float:
    return min(_TERM_MAX, tokens / tokens_of_one)


def _not_below(need: ReplicaNeed, previous: ReplicaNeed) -> ReplicaNeed:
    """Return the need with terms of stale inputs not below the previous ones.

    All terms are divided by a rate that the replicas measured, so stale replicas affect all.
    """
    names: set[str] = set()
    if "online" in need.stale:
        names |= {"online", "waiting", "burst"}
    if "bulk" in need.stale:
        names |= {"bulk"}
    if "replicas" in need.stale:
        names |= {"online", "waiting", "bulk", "burst"}
    kept = {name: max(getattr(need, name), getattr(previous, name)) for name in names}
    return replace(need, **kept)
