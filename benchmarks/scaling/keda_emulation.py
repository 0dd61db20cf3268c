"""The decisions of KEDA on the lag of topics, with the HPA that it makes. Pure.

KEDA decides between zero and one: each `polling_s` it reads the lag, and a pool whose lag was 0 for
`cooldown_s` goes to zero. Above that the HPA decides, each `sync_s`, by an external metric with an
average value: ceil(lag / threshold), the highest of several triggers, unless the ratio to what runs
is within the tolerance. Up at once within the policies of scaling up; down to the highest
recommendation of the window. Without consumers that stay idle, KEDA's Kafka scaler counts at most
as many replicas as the topic has partitions. Sources: KEDA's "Scaling Deployments" and "Apache
Kafka", Kubernetes' "Horizontal Pod Autoscaling" and its defaults.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaSettings:
    """A ScaledObject, and the behaviour of its HPA. Defaults are those of KEDA and Kubernetes."""

    thresholds: tuple[float, ...]  # `lagThreshold` of each trigger, in messages a replica
    replicas_max: int
    partitions: int
    polling_s: float = 30.0
    cooldown_s: float = 300.0
    sync_s: float = 15.0
    tolerance: float = 0.1
    down_window_s: float = 300.0
    up_replicas: int = 4
    up_percent: float = 100.0
    up_period_s: float = 15.0

    @property
    def most(self) -> int:
        """The most replicas."""
        return min(self.replicas_max, self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaState:
    """What KEDA and the HPA know; times are seconds of the caller's clock."""

    replicas: int = 0
    active_s: float = -math.inf  # when a poll last found lag
    polled_s: float = -math.inf
    synced_s: float = -math.inf
    recommended: tuple[tuple[float, int], ...] = ()  # of the window, with their times
    raised: tuple[tuple[float, int], ...] = ()  # replicas added within the period


def next_state(
    settings: KedaSettings, state: KedaState, lags: Sequence[float], now_s: float
) -> KedaState:
    """Return the state after this moment; `lags` has the lag of each trigger, in messages.

    Raises ValueError if there are not as many lags as triggers.
    """
    if len(lags) != len(settings.thresholds):
        raise ValueError("give one lag for each trigger")
    if now_s - state.polled_s >= settings.polling_s:
        state = _polled(settings, state, lags, now_s)
    if state.replicas > 0 and now_s - state.synced_s >= settings.sync_s:
        state = _synced(settings, state, lags, now_s)
    return state


def _polled(
    settings: KedaSettings, state: KedaState, lags: Sequence[float], now_s: float
) -> KedaState:
    """Return the state after KEDA's own loop: to one replica, or to none."""
    state = replace(state, polled_s=now_s)
    if any(lag > 0 for lag in lags):
        replicas = max(1, state.replicas)
        return replace(state, active_s=now_s, replicas=min(replicas, settings.most))
    if state.replicas and now_s - state.active_s >= settings.cooldown_s:
        return replace(state, replicas=0, recommended=(), raised=())
    return state


def _synced(
    settings: KedaSettings, state: KedaState, lags: Sequence[float], now_s: float
) -> KedaState:
    """Return the state after a sync of the HPA, which never goes below one."""
    current = state.replicas
    wanted = max(_wanted(settings, current, *pair) for pair in _triggers(settings, lags))
    wanted = min(max(1, wanted), settings.most)
    recommended = (
        *((at_s, n) for at_s, n in state.recommended if now_s - at_s < settings.down_window_s),
        (now_s, wanted),
    )
    raised = tuple((at_s, n) for at_s, n in state.raised if now_s - at_s < settings.up_period_s)
    state = replace(state, synced_s=now_s, recommended=recommended, raised=raised)
    if wanted > current:
        target = min(wanted, _up_limit(settings, current, sum(n for _, n in raised)))
        added = ((now_s, target - current),) if target > current else ()
        return replace(state, replicas=max(current, target), raised=(*raised, *added))
    return replace(state, replicas=min(current, max(n for _, n in recommended)))


def _triggers(settings: KedaSettings, lags: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(settings.thresholds, lags, strict=True))


def _wanted(settings: KedaSettings, current: int, threshold: float, lag: float) -> int:
    """Return the replicas that one trigger asks for."""
    ratio = lag / (threshold * current)
    if abs(ratio - 1) <= settings.tolerance:
        return current
    return math.ceil(lag / threshold)


def _up_limit(settings: KedaSettings, current: int, raised: int) -> int:
    """Return the most replicas that the policies of scaling up allow now: the laxer one counts."""
    before = current - raised  # at the beginning of the period
    by_percent = math.ceil(before * (1 + settings.up_percent / 100))
    return max(before + settings.up_replicas, by_percent)
