"""What this batcher served to tenants, for other batchers, and what they served, for its queues."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final
from uuid import UUID

from batcher.policy.service_exchange import RemoteService, ServiceExchange
from batcher.policy.service_restore import EXPECTED_S, Leads
from batcher.queueing.queue_levels import PoolQueue
from batcher.queueing.queues import Queues
from topics.records.records import TenantService, UsageReport

TENANTS_MAX: Final = 2_000
"""Tenants of a pool in one report. Of further ones each batcher knows its own service only."""

ENTRIES_MAX: Final = 10_000
"""Tenants of all pools in one report: half a megabyte."""


def report_service(queues: Queues) -> dict[str, list[TenantService]]:
    """Return the tenants of each pool that wait, or were served of late."""
    found: dict[str, list[TenantService]] = {}
    left = ENTRIES_MAX
    for name, waiting in queues.waiting_by_tenant().items():
        if (pool := queues.pools.get(name)) is None:
            continue
        tenants = [*{*waiting, *pool.ledger}]
        if len(tenants) > (count_max := min(TENANTS_MAX, left)):
            # In the order of their ids, so that the same ones are left out each time.
            tenants = sorted(tenants, key=attrgetter("int"))[:count_max]
        left -= len(tenants)
        if tenants:
            found[name] = [
                _tenant_service(pool, tenant_id, waiting.get(tenant_id, 0)) for tenant_id in tenants
            ]
    return found


def _tenant_service(pool: PoolQueue, tenant_id: UUID, waiting: int) -> TenantService:
    counters, claim = pool.counters, pool.known_claim(tenant_id)
    return TenantService(
        tenant_id,
        pool.ledger.served(tenant_id),
        waiting,
        lead=counters.lead(tenant_id),
        charged=pool.charges.served(tenant_id),
        weight=claim.weight,
        reserved=claim.reserved,
        tenant_class=claim.tenant_class,
        counter=counters.counter(tenant_id) if tenant_id in counters else None,
    )


def prune_service(queues: Queues, *, now_s: float) -> None:
    """Forget tenants that were not served for a while, and restored ones that did not come."""
    waiting = queues.waiting_by_tenant()
    for name, pool in queues.pools.items():
        if pool.counters.expects_clients and now_s - pool.restored_s > EXPECTED_S:
            pool.counters.end_restore()
        pool.ledger.prune(pool.claims, now_s=now_s)
        pool.charges.prune(pool.claims, now_s=now_s)
        known = {*pool.ledger, *waiting[name]}
        pool.left_claims = {key: one for key, one in pool.left_claims.items() if key in known}


def restore_service(queues: Queues, leads: Leads, *, now_s: float) -> None:
    """Start tenants at the leads that reports of earlier processes name."""
    for name, tenants in leads.items():
        pool = queues.pool(name)
        pool.restored_s = now_s
        for tenant_id, one in tenants.items():
            pool.counters.restore(tenant_id, one.lead, one.tenant_class, has_work=one.waiting > 0)
            if one.charged:
                pool.charges.add(tenant_id, one.charged)


def charge_remote_service(queues: Queues, services: Iterable[RemoteService]) -> None:
    """Charge tenants for what other batchers served them."""
    for pool_name, tenant_id, service, weight, tenant_class in services:
        if (pool := queues.pools.get(pool_name)) is not None:
            pool.charge_remote(tenant_id, service, weight, tenant_class)


def charge_corrections(queues: Queues, report: UsageReport, *, batcher_id: str) -> None:
    """Charge tenants for what their items used at a replica beyond the estimates.

    Jobs are charged, too, if their items were dispatched by the batcher `batcher_id`, this one.
    """
    if (pool := queues.pools.get(report.pool)) is None:
        return
    for one in report.tenants:
        pool.correct(one.tenant_id, one.correction)
    for job in report.jobs:
        if job.batcher_id == batcher_id:
            pool.correct_job(job.tenant_id, job.job_id, job.correction)


def pool_shares(queues: Queues, exchange: ServiceExchange, *, now_s: float) -> dict[str, float]:
    """Return this batcher's share of each pool; none while it is the only batcher.

    The counters of tenants follow their effective weights from now on; those of the only batcher
    follow the weights, since it serves reserved shares by its own order.
    """
    if not exchange.has_others(now_s=now_s):
        for known in queues.pools.values():
            known.raise_weights({})
        return {}
    shares = {}
    for name, waiting in queues.waiting_by_tenant().items():
        if (pool := queues.pools.get(name)) is not None:
            claims = {tenant_id: pool.known_claim(tenant_id) for tenant_id in waiting}
            weights = exchange.weights(name, claims, now_s=now_s)
            pool.raise_weights(weights)
            shares[name] = exchange.share(name, waiting, weights, now_s=now_s)
    return shares
