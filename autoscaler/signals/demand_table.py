"""Online demand by pool, from `demand` of the batchers of the class `interactive`."""

from collections.abc import Iterable
from typing import Final

from autoscaler.metrics import DROPPED
from autoscaler.signals.amounts import amount
from topics.records.records import Demand, DemandTokens

GONE_S: Final = 10.0
"""Time without a record after which a batcher has ended; its successor has its items."""

_BATCHERS_MAX: Final = 1_000


class _Batcher:
    __slots__ = ("heard_s", "pools")

    def __init__(self) -> None:
        self.heard_s = 0.0
        self.pools: dict[str, DemandTokens] = {}


class DemandTable:
    """What batchers published last. For one thread."""

    def __init__(self) -> None:
        """Start without batchers."""
        self._batchers: dict[str, _Batcher] = {}
        self._heard_s: float | None = None
        self._arrived: dict[str, tuple[float, float]] = {}  # prompt and output tokens, not taken

    @property
    def pools(self) -> Iterable[str]:
        """The pools with demand now."""
        return {pool for one in self._batchers.values() for pool in one.pools}

    def record(self, demand: Demand, now_s: float) -> None:
        """Apply a record that arrived at `now_s`; only online work counts."""
        if demand.job_class != "interactive":
            return
        batcher = self._batchers.get(demand.batcher_id)
        is_new = batcher is None
        if batcher is None:
            if len(self._batchers) >= _BATCHERS_MAX:
                DROPPED.labels("batchers").inc()
                return
            batcher = self._batchers[demand.batcher_id] = _Batcher()
        batcher.heard_s = self._heard_s = now_s
        pools = {pool: one for pool, one in demand.pools.items() if _is_sound(one)}
        for pool, one in pools.items():
            if not is_new:
                self._count(pool, batcher.pools.get(pool), one)
        # Totals of a pool that the record leaves out are kept, so that nothing is counted twice.
        absent = batcher.pools.keys() - demand.pools.keys()
        kept = {pool: _without_waiting(batcher.pools[pool]) for pool in absent}
        refused = {
            pool: batcher.pools[pool]
            for pool in demand.pools.keys() - pools.keys()
            if pool in batcher.pools
        }
        batcher.pools = {**kept, **refused, **pools}

    def take_arrived(self, pool: str, output_weight: float) -> float:
        """Return the weighted tokens that arrived for a pool since the last call."""
        prompt, output = self._arrived.pop(pool, (0.0, 0.0))
        return prompt + output_weight * output

    def forget_arrived(self) -> None:
        """Discard what arrived since it was taken last; totals go on from here."""
        self._arrived.clear()

    def waiting(self, pool: str, output_weight: float) -> tuple[float, float | None]:
        """Return the weighted tokens that wait for a pool, and their earliest deadline."""
        found = [one.pools[pool] for one in self._batchers.values() if pool in one.pools]
        tokens = sum(one.prompt_tokens + output_weight * one.output_tokens for one in found)
        deadlines = [one.deadline_s for one in found if one.deadline_s > 0]
        return tokens, min(deadlines, default=None)

    def age_s(self, now_s: float) -> float | None:
        """Return the age of the oldest of the batchers' newest records; None: no batcher ever."""
        for name in [n for n, one in self._batchers.items() if now_s - one.heard_s > GONE_S]:
            del self._batchers[name]
        if self._heard_s is None:
            return None
        ages = [now_s - one.heard_s for one in self._batchers.values()]
        return max(0.0, max(ages, default=now_s - self._heard_s))

    def _count(self, pool: str, before: DemandTokens | None, now: DemandTokens) -> None:
        if before is None:  # its first arrivals since the batcher is known
            prompt, output, items = (
                now.arrived_prompt_tokens,
                now.arrived_output_tokens,
                now.arrived_items,
            )
        else:
            prompt = now.arrived_prompt_tokens - before.arrived_prompt_tokens
            output = now.arrived_output_tokens - before.arrived_output_tokens
            items = now.arrived_items - before.arrived_items
        if min(prompt, output, items) < 0:
            return  # the totals began anew
        known = self._arrived.get(pool, (0.0, 0.0))
        self._arrived[pool] = known[0] + prompt, known[1] + output


def _is_sound(one: DemandTokens) -> bool:
    """Return whether all numbers of a pool are from 0 to the limit; else they are counted."""
    numbers = (
        one.prompt_tokens,
        one.output_tokens,
        one.arrived_items,
        one.arrived_prompt_tokens,
        one.arrived_output_tokens,
        one.deadline_s,
    )
    return all(amount(number, "demand") is not None for number in numbers)


def _without_waiting(one: DemandTokens) -> DemandTokens:
    return DemandTokens(
        prompt_tokens=0.0,
        output_tokens=0.0,
        arrived_items=one.arrived_items,
        arrived_prompt_tokens=one.arrived_prompt_tokens,
        arrived_output_tokens=one.arrived_output_tokens,
    )
