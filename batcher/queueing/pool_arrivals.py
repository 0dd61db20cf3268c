"""What arrived for each pool since the batcher started: totals that never fall.

The autoscaler takes differences of them, so a pool keeps its totals while nothing of it waits. A
chunk counts at its first delivery: one that is delivered again, requeued or dispatched again is
work that is known.
"""

from dataclasses import dataclass
from typing import Final

from batcher.queueing.buffered_chunk import BufferedChunk

POOLS_MAX: Final = 1_000
"""Pools whose arrivals are counted; those of further pools are not. A policy file has no more."""


@dataclass(slots=True)
class PoolTotals:
    """The arrivals of one pool; tokens are estimates."""

    items: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0  # expected


class PoolArrivals:
    """The totals of all pools."""

    def __init__(self) -> None:
        self.pools: dict[str, PoolTotals] = {}

    def add(self, chunk: BufferedChunk) -> None:
        """Count a chunk that was delivered for the first time."""
        pool = chunk.job.pool
        totals = self.pools.get(pool)
        if totals is None:
            if len(self.pools) >= POOLS_MAX:
                return
            totals = self.pools[pool] = PoolTotals()
        totals.items += len(chunk.items)
        output = chunk.output_token_count
        totals.prompt_tokens += chunk.token_count - output
        totals.output_tokens += output
