"""Stops adding replicas when more replicas do not raise the pool's rate. Pure.

Then something else limits the pool, for example an upstream or too few partitions, and more
replicas only cost. The veto needs evidence: replicas were added and are warm, work waited at each
decision in between, and the rate grew by less than a fifth of what they should have added. Without
it, nothing is vetoed. Source: the throughput check proposed for KEDA (kedacore/keda#7092).
"""

from typing import Final

from msgspec import Struct

from autoscaler.policy.signals import PoolSignals, ReplicaState

GAIN_MIN: Final = 0.2
"""Part of the expected gain below which the added replicas count as useless."""

FREEZE_MIN_S: Final = 300.0
"""Shortest time for which additions stop; after it the pool may try again."""

ASSESS_MIN_S: Final = 60.0
"""Shortest time until an addition is assessed: a replica measures its rate over a full window."""

_STARTS: Final = 2  # cold starts until an addition is assessed; twice as many until it is dropped


class AdditionTrial(Struct, frozen=True, kw_only=True):
    """A pool when replicas were added to it."""

    at_s: float
    warm: int
    tokens_per_s: float


class Veto(Struct, frozen=True, kw_only=True):
    """The trial that is open, and until when additions stop."""

    trial: AdditionTrial | None = None
    until_s: float = 0.0

    def is_active(self, now_s: float) -> bool:
        """Return whether additions stop now."""
        return now_s < self.until_s


def open_trial(veto: Veto, signals: PoolSignals, now_s: float) -> Veto:
    """Return the veto after replicas were added: a trial, if the pool's rate can be compared."""
    warm = _warm(signals)
    is_known = warm > 0 and signals.rate_tokens_per_s > 0 and not signals.stale_inputs()
    if veto.trial is not None or not is_known or not has_waiting_work(signals):
        return veto
    trial = AdditionTrial(at_s=now_s, warm=warm, tokens_per_s=signals.rate_tokens_per_s)
    return Veto(trial=trial, until_s=veto.until_s)


def assess_trial(veto: Veto, signals: PoolSignals, now_s: float, cold_start_s: float) -> Veto:
    """Return the veto at a decision: the trial is kept, dropped, or has shown no gain."""
    trial = veto.trial
    if trial is None or signals.stale_inputs():
        return veto
    if not has_waiting_work(signals):
        return Veto(until_s=veto.until_s)  # the pool serves all that comes: its rate shows nothing
    assess_s = max(ASSESS_MIN_S, _STARTS * cold_start_s)
    assessed_s = trial.at_s + assess_s
    if now_s < assessed_s:
        return veto
    warm = _warm(signals)
    if warm <= trial.warm or not _is_measured(signals):
        is_dropped = now_s >= assessed_s + assess_s
        return Veto(until_s=veto.until_s) if is_dropped else veto
    expected = trial.tokens_per_s * (warm / trial.warm - 1)
    if signals.rate_tokens_per_s - trial.tokens_per_s >= GAIN_MIN * expected:
        return Veto(until_s=veto.until_s)
    return Veto(until_s=now_s + max(FREEZE_MIN_S, _STARTS * cold_start_s))


def has_waiting_work(signals: PoolSignals) -> bool:
    """Return whether work waits, so that the pool's rate is bound by its replicas."""
    return signals.online_backlog_tokens > 0 or any(
        one.prompt_tokens + one.output_tokens > 0 for one in signals.bulk
    )


def _is_measured(signals: PoolSignals) -> bool:
    """Return whether each warm replica measured a rate: else the pool's rate lacks the new ones."""
    return all(one.tokens_per_s > 0 for one in signals.replicas if one.state is ReplicaState.WARM)


def _warm(signals: PoolSignals) -> int:
    return sum(one.state is ReplicaState.WARM for one in signals.replicas)
