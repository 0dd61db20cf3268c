"""The tokens of each pool as the record of demand holds them."""

from batcher.queueing.pool_arrivals import PoolArrivals, PoolTotals
from batcher.queueing.queues import Queues
from topics.records.records import DemandTokens

_NONE = PoolTotals()


def demand_of_pools(queues: Queues, arrivals: PoolArrivals) -> dict[str, DemandTokens]:
    """Return the demand of each pool that has waiting items, or had arrivals since the start.

    Items wait while they are buffered; deferred records are not counted. The cost follows the
    batch keys of the pools, not their chunks.
    """
    names = {name for name, pool in queues.pools.items() if pool.item_count} | arrivals.pools.keys()
    return {name: _demand_of(queues, name, arrivals.pools.get(name, _NONE)) for name in names}


def _demand_of(queues: Queues, name: str, totals: PoolTotals) -> DemandTokens:
    tokens = output = 0
    deadline_s = 0.0
    pool = queues.pools.get(name)
    for queue in () if pool is None else pool.batch_keys.values():
        if not queue.item_count:
            continue
        tokens += queue.token_count
        output += queue.output_token_count
        deadline_s = min(deadline_s or queue.deadline_s, queue.deadline_s)
    return DemandTokens(
        prompt_tokens=float(tokens - output),
        output_tokens=float(output),
        arrived_items=totals.items,
        arrived_prompt_tokens=float(totals.prompt_tokens),
        arrived_output_tokens=float(totals.output_tokens),
        deadline_s=max(0.0, deadline_s),
    )
