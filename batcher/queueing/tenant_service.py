"""What this batcher served to tenants, for other batchers, and what they served, for its queues."""

from collections.abc import Iterable
from typing import Final

from batcher.policy.service_exchange import ServedElsewhere, ServiceExchange
from batcher.queueing.queues import Queues
from topics.records.records import TenantService

TENANTS_MAX: Final = 2_000
"""Tenants of a pool in one report, about 100 KiB. Of further ones each batcher knows its own."""


def take_service(queues: Queues) -> dict[str, list[TenantService]]:
    """Return the tenants of each pool; those without waiting items are not returned again."""
    found = {}
    for name, waiting in queues.waiting_by_tenant().items():
        pool = queues.pools.get(name)
        served = {} if pool is None else pool.served
        tenants = [*waiting, *(tenant_id for tenant_id in served if tenant_id not in waiting)]
        found[name] = [
            TenantService(tenant_id, served.get(tenant_id, 0.0), waiting.get(tenant_id, 0))
            for tenant_id in tenants[:TENANTS_MAX]
        ]
        for tenant_id in served.keys() - waiting.keys():
            del served[tenant_id]
    return found


def charge_elsewhere(queues: Queues, services: Iterable[ServedElsewhere]) -> None:
    """Charge tenants for what other batchers served them."""
    for pool_name, tenant_id, service in services:
        if (pool := queues.pools.get(pool_name)) is not None:
            pool.counters.charge_if_known(tenant_id, service)


def pool_shares(queues: Queues, exchange: ServiceExchange, *, now_s: float) -> dict[str, float]:
    """Return this batcher's share of each pool; none while it is the only batcher."""
    if not exchange.has_others(now_s=now_s):
        return {}
    return {
        name: exchange.share(name, waiting, pool.weights, now_s=now_s)
        for name, waiting in queues.waiting_by_tenant().items()
        if (pool := queues.pools.get(name)) is not None
    }
