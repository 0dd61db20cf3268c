"""The queue levels of a pool: batch key, tenant, job.

    pool ─► batch key (model, versions, endpoint) ─► tenant ─► job ─► chunks, in the job's order

Tenants share by reserved shares, priority classes and weights, see `TenantOrder`. Of a tenant's
jobs the lowest rank goes first, and equal ranks share by tokens too, see `core.urgency`. The online
calls of a tenant queue as one job, nearest deadline first.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from batcher.policy.fairness import VirtualCounters, service_cost
from batcher.policy.indexed_priority_queue import IndexedPriorityQueue
from batcher.policy.service_ledger import ServiceLedger
from batcher.policy.tenant_order import TenantOrder
from batcher.queueing.buffered_chunk import BatchKey, BufferedChunk
from batcher.queueing.prefix_groups import PrefixGroups
from core.tenant_claims import PLAIN_CLAIM, TenantClaim
from topics.records.eligibility import RequiredModel
from topics.records.records import JobRef

UNAPPLIED_MAX: Final = 1_000
"""Jobs of a tenant under one batch key whose corrections wait for their next chunk."""

_CALLS = UUID(int=0)


def job_key(job: JobRef) -> UUID:
    """Return the job that a chunk queues under: all online calls of a tenant share one.

    Fairness among a thousand jobs of one item each would visit all of them for each call.
    """
    return job.job_id if job.call is None else _CALLS


class JobQueue:
    """The chunks of one job under one batch key."""

    __slots__ = ("_chunks", "groups", "job", "rank")

    def __init__(self, job: JobRef) -> None:
        """Start empty; `job` is that of the newest chunk."""
        self.job = job
        self.rank = 0  # among the jobs of its tenant; the lowest goes first
        self._chunks: IndexedPriorityQueue[BufferedChunk, float] = IndexedPriorityQueue()
        self.groups: PrefixGroups | None = None  # None: no chunk has a prefix group

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, chunk: BufferedChunk) -> None:
        """Add a chunk."""
        self.job = job = chunk.job
        self._chunks.set_priority(chunk, chunk.position if job.call is None else job.deadline_s)
        if chunk.prefix_group:
            if self.groups is None:
                self.groups = PrefixGroups(job.job_id)
            self.groups.add(chunk)

    def remove(self, chunk: BufferedChunk) -> None:
        """Remove a chunk."""
        self._chunks.remove(chunk)
        if chunk.prefix_group and self.groups is not None:
            self.groups.remove(chunk)

    def first(self) -> BufferedChunk:
        """Return, without removing it, the chunk of the lowest position or nearest deadline."""
        return self._chunks.first()


class TenantQueue:
    """The jobs of one tenant under one batch key."""

    __slots__ = ("_counters", "_jobs", "_order", "_unapplied")

    def __init__(self) -> None:
        self._counters: VirtualCounters[UUID] = VirtualCounters()
        self._jobs: dict[UUID, JobQueue] = {}
        self._order: IndexedPriorityQueue[UUID, tuple[int, float]] = IndexedPriorityQueue()
        self._unapplied: dict[UUID, float] = {}  # tokens to charge jobs for when they return

    def __len__(self) -> int:
        """Jobs with chunks."""
        return len(self._jobs)

    def add(self, chunk: BufferedChunk, rank: int) -> None:
        """Add a chunk; `rank` is its job's among those of the tenant, the lowest goes first."""
        job_id = job_key(chunk.job)
        queue = self._jobs.get(job_id)
        if queue is None:
            queue = self._jobs[job_id] = JobQueue(chunk.job)
            self._counters.activate(job_id)
            if self._unapplied:
                self._counters.charge(job_id, self._unapplied.pop(job_id, 0.0))
        queue.add(chunk)
        queue.rank = rank
        self._update_order(job_id, queue)

    def remove(self, chunk: BufferedChunk) -> None:
        """Remove a chunk."""
        job_id = job_key(chunk.job)
        queue = self._jobs[job_id]
        queue.remove(chunk)
        if not queue:
            del self._jobs[job_id]
            self._counters.deactivate(job_id)
            self._order.remove(job_id)

    @property
    def deadline_s(self) -> float:
        """The earliest deadline among the next chunks of all jobs."""
        return min(queue.first().job.deadline_s for queue in self._jobs.values())

    def charge(self, job: JobRef, tokens: float) -> None:
        """Charge a job for served tokens."""
        job_id = job_key(job)
        self._counters.charge(job_id, service_cost(tokens))
        self._update_order(job_id, self._jobs[job_id])

    def correct(self, job_id: UUID, correction: float) -> None:
        """Charge a job for tokens beyond the estimates; a refund if negative.

        A job without chunks here, whose items are all at replicas, is charged when it returns.
        """
        if (queue := self._jobs.get(job_id)) is not None:
            self._counters.charge(job_id, correction)
            self._update_order(job_id, queue)
            return
        correction += self._unapplied.pop(job_id, 0.0)
        if correction <= 0:  # at once, so that the job returns no lower than the others
            self._counters.charge_if_known(job_id, correction)
            return
        while len(self._unapplied) >= UNAPPLIED_MAX:
            del self._unapplied[next(iter(self._unapplied))]
        self._unapplied[job_id] = correction

    def update_ranks(self, rank: Callable[[JobRef], int]) -> None:
        """Compute the rank of every job again."""
        for job_id, queue in self._jobs.items():
            queue.rank = rank(queue.job)
            self._update_order(job_id, queue)

    def first(self) -> JobQueue:
        """Return the job of the lowest rank, of equals the least served."""
        return self._jobs[self._order.first()]

    def _update_order(self, job_id: UUID, queue: JobQueue) -> None:
        self._order.set_priority(job_id, (queue.rank, self._counters.counter(job_id)))


class BatchKeyQueue:
    """Items that may share a batch."""

    def __init__(self, key: BatchKey) -> None:
        self.key = key
        self.tenants: dict[UUID, TenantQueue] = {}
        self.item_count = 0
        self.token_count = 0
        self.output_token_count = 0
        self.since_s = 0.0
        self.deadline_s = float("inf")  # a lower bound of the earliest, exact after `update_ranks`


@dataclass(slots=True)
class PoolQueue:
    """The batch keys of a pool and the tokens that it served to each tenant."""

    batch_keys: dict[BatchKey, BatchKeyQueue]
    counters: TenantOrder[UUID]
    claims: dict[UUID, TenantClaim] = field(default_factory=dict)  # of the active tenants
    discounts: dict[UUID, float] = field(default_factory=dict)  # weights by effective weights
    left_claims: dict[UUID, TenantClaim] = field(default_factory=dict)  # of others, unless plain
    ledger: ServiceLedger = field(default_factory=ServiceLedger)
    charges: ServiceLedger = field(default_factory=ServiceLedger)  # by any batcher, less refunds
    item_count: int = 0
    grouped_count: int = 0  # chunks with a prefix group
    last_added_s: float = float("-inf")  # monotonic
    restored_s: float = float("-inf")  # monotonic: when leads of an earlier process were set

    def activate(self, job: JobRef) -> None:
        """Add the tenant of a job that has work here, with the claim of its newest record."""
        claim = self.claims.get(job.tenant_id)
        if claim is None or claim != (job.weight, job.reserved, job.tenant_class):
            claim = _claim_of(job)
            self.claims[job.tenant_id] = claim
            self.discounts.pop(job.tenant_id, None)  # of the claim before
            self.counters.activate(job.tenant_id, claim)

    def deactivate(self, tenant_id: UUID) -> None:
        """Remove a tenant that has no work here any more."""
        claim = self.claims.pop(tenant_id)
        self.discounts.pop(tenant_id, None)
        self._remember_claim(tenant_id, claim)
        self.counters.deactivate(tenant_id)

    def remember_claim(self, job: JobRef) -> None:
        """Remember the claim of a tenant whose record is counted, but not added yet."""
        if job.tenant_id not in self.claims:
            self._remember_claim(job.tenant_id, _claim_of(job))

    def _remember_claim(self, tenant_id: UUID, claim: TenantClaim) -> None:
        if claim != PLAIN_CLAIM:
            self.left_claims[tenant_id] = claim
        else:
            self.left_claims.pop(tenant_id, None)

    def raise_weights(self, effective: Mapping[UUID, float]) -> None:
        """Let counters follow effective weights where reserved shares raise them.

        With several batchers, a tenant with a reserved share then takes it where the others have
        had more than here. Lower weights are left to the order of classes.
        """
        self.discounts = {
            tenant_id: claim.weight / effective[tenant_id]
            for tenant_id, claim in self.claims.items()
            if claim.reserved and effective.get(tenant_id, 0.0) > claim.weight
        }

    def known_claim(self, tenant_id: UUID) -> TenantClaim:
        """Return the claim of a tenant, as it was when it left if it is not active."""
        claim = self.claims.get(tenant_id)
        return self.left_claims.get(tenant_id, PLAIN_CLAIM) if claim is None else claim

    def charge(self, job: JobRef, tokens: float) -> None:
        """Charge the tenant of a job for weighted tokens that this batcher serves.

        The weight is that of the record read last: it may have changed since this one was emitted.
        """
        service = service_cost(tokens, self.claims[job.tenant_id].weight)
        charged = service * self.discounts.get(job.tenant_id, 1.0)
        self.counters.charge(job.tenant_id, charged, tokens)
        self.ledger.add(job.tenant_id, service)
        self.charges.add(job.tenant_id, service)

    def charge_remote(
        self, tenant_id: UUID, service: float, weight: int = 0, tenant_class: int | None = None
    ) -> None:
        """Charge a tenant for what another batcher served it, unless it is unknown here.

        `weight` is the one that the service was divided by; 0: unknown, of an older release.
        """
        tokens = service * (weight or self.known_claim(tenant_id).weight)
        charged = service * self.discounts.get(tenant_id, 1.0)
        if self.counters.charge_if_known(tenant_id, charged, tokens, tenant_class):
            self.charges.add(tenant_id, service)

    def correct(self, tenant_id: UUID, correction: float) -> None:
        """Charge a tenant for what its items used beyond their estimates; a refund if negative.

        It refunds at most what this process has charged: another process may have charged the rest.
        """
        if not math.isfinite(correction):
            return
        correction = max(correction, -self.charges.served(tenant_id))
        tokens = correction * self.known_claim(tenant_id).weight
        charged = correction * self.discounts.get(tenant_id, 1.0)
        if self.counters.charge_if_known(tenant_id, charged, tokens):
            self.charges.add(tenant_id, correction)

    def correct_job(self, tenant_id: UUID, job_id: UUID, correction: float) -> None:
        """Charge a job for tokens beyond the estimates of this batcher; a refund if negative."""
        if not math.isfinite(correction):
            return
        for queue in self.batch_keys.values():
            if (tenant := queue.tenants.get(tenant_id)) is not None:
                tenant.correct(job_id, correction)

    def unserved_items(self, is_served: Callable[[RequiredModel], bool]) -> int:
        """Return the items that no replica may run."""
        return sum(
            queue.item_count
            for key, queue in self.batch_keys.items()
            if not is_served(key.required_model)
        )

    def end_credit_of_blocked(self, is_served: Callable[[RequiredModel], bool]) -> None:
        """Treat tenants all of whose items wait for a version that is not served as without work.

        They start again at the lowest counter of the others. Else their low counters would be the
        level at which tenants come, who would then be served before all others for long.
        """
        served = {
            tenant_id
            for key, queue in self.batch_keys.items()
            if is_served(key.required_model)
            for tenant_id in queue.tenants
        }
        if not served or len(served) == len(self.claims):
            return
        blocked = [tenant_id for tenant_id in self.claims if tenant_id not in served]
        for tenant_id in blocked:
            self.counters.deactivate(tenant_id)
        for tenant_id in blocked:
            self.counters.activate(tenant_id, self.claims[tenant_id])

    def next_tenant(self, queue: BatchKeyQueue) -> UUID:
        """Return the tenant of `queue` that is served next."""
        return self.counters.first(queue.tenants)

    def by_fairness(self) -> list[BatchKeyQueue]:
        """Return the non-empty queues, that of the tenant first in order first."""
        queues = [queue for queue in self.batch_keys.values() if queue.item_count]
        if len(queues) > 1:
            queues.sort(key=lambda queue: self.counters.first_key(queue.tenants))
        return queues


def _claim_of(job: JobRef) -> TenantClaim:
    return TenantClaim(job.weight, job.reserved, job.tenant_class)
