"""What the items of each tenant used, less what batchers charged for them.

Batchers charge a tenant by estimate when they dispatch an item. The replica knows the tokens when
the item ends: it reports the difference, and the batchers charge that, too (VTC with corrections:
Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, 4.2). Batchers exchange what
they serve to tenants but not to jobs, so the difference of a job concerns the batcher that charged.
"""

import asyncio
from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final, TypeVar
from uuid import UUID

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.flow_control.compute_rates import ComputeRates
from topics.clients.producer import RecordProducer
from topics.records.catalogue import USAGE
from topics.records.codec import encode, kind_headers
from topics.records.records import Chunk, JobRef, JobUsage, TenantUsage, UsageReport

K = TypeVar("K", bound=Hashable)

REPORT_S: Final = 0.5
"""Time between two reports. A crash loses the corrections of this time."""

TENANTS_MAX: Final = 2_000
"""Tenants of one report; further tenants are in the next one."""

JOBS_MAX: Final = 2_000
"""Jobs of one report; further jobs are in the next one."""


def item_charges(part: Chunk) -> list[float]:
    """Return what each item of a part of a batch was charged: its share of the part's tokens."""
    counts = [item.token_count for item in part.items]
    total, charged = sum(counts), part.charged or 0.0
    if not total:
        return [charged / len(counts)] * len(counts)
    return [charged * count / total for count in counts]


class TokenUsage:
    """Corrections of one replica and class. All methods are called on the event loop."""

    def __init__(
        self, producer: RecordProducer, replica_id: str, pool: str, job_class: str
    ) -> None:
        """`replica_id` and `pool` name the replica in reports."""
        self.rates = ComputeRates()
        self._producer = producer
        self._replica_id, self._pool, self._job_class = replica_id, pool, job_class
        # Corrections that are not reported yet.
        self._corrections: dict[UUID, float] = {}  # by tenant
        self._of_jobs: dict[tuple[str, UUID, UUID], float] = {}  # by batcher, tenant and job

    def settle(
        self,
        job: JobRef,
        ended: Iterable[tuple[EngineAnswer | None, float]],
        *,
        batcher_id: str = "",
    ) -> None:
        """Settle items of a job that have ended: the answer of each, and what it was charged.

        `batcher_id` is the batcher that charged a bulk job; online calls are charged to no job.
        Items without an answer are those that used nothing here: they are dropped before they run,
        or requeued, and then charged again. An answer without token counts keeps its estimate: its
        engine does not count, or the item failed and may have run for long.
        """
        prompt = output = 0
        charged = 0.0
        for answer, charge in ended:
            if answer is not None:
                if not (answer.input_tokens or answer.output_tokens):
                    continue
                prompt += max(0, answer.input_tokens - answer.cached_tokens)
                output += answer.output_tokens
            charged += charge
        self.rates.add_tokens(job.endpoint, prompt, output)
        used = prompt + self.rates.output_weight(job.endpoint) * output
        correction = used - charged
        if not correction:
            return
        known = self._corrections.get(job.tenant_id, 0.0)
        self._corrections[job.tenant_id] = known + correction / max(1, job.weight)
        if batcher_id:
            key = batcher_id, job.tenant_id, job.job_id
            self._of_jobs[key] = self._of_jobs.get(key, 0.0) + correction

    def publish(self) -> None:
        """Report what was settled since the last report."""
        has_news = self._corrections or self._of_jobs
        if not has_news or not self._producer.has_space(USAGE.name, 0):
            return
        tenants = [TenantUsage(*one) for one in _take(self._corrections, TENANTS_MAX)]
        jobs = [JobUsage(*key, correction) for key, correction in _take(self._of_jobs, JOBS_MAX)]
        self._producer.send(
            USAGE.name,
            encode(UsageReport(self._replica_id, self._pool, self._job_class, tenants, jobs)),
            partition=0,
            key=f"{self._replica_id}:{self._job_class}".encode(),
            headers=kind_headers(UsageReport),
        )

    async def run(self) -> None:
        """Report repeatedly until cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            self.publish()


def _take(corrections: dict[K, float], count_max: int) -> list[tuple[K, float]]:
    """Remove and return the corrections that were added first."""
    taken = list(islice(corrections.items(), count_max))
    for key, _ in taken:
        del corrections[key]
    return taken
