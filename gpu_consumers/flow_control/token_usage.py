"""What the items of each tenant used, less what batchers charged for them.

Batchers charge a tenant by estimate when they dispatch an item. The replica knows the tokens when
the item ends: it reports the difference, and the batchers charge that, too (VTC with corrections:
Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, 4.2).
"""

import asyncio
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.flow_control.compute_rates import ComputeRates
from topics.clients.producer import RecordProducer
from topics.records.catalogue import USAGE
from topics.records.codec import encode, kind_headers
from topics.records.records import Chunk, JobRef, TenantUsage, UsageReport

REPORT_S: Final = 0.5
"""Time between two reports. A crash loses the corrections of this time."""

TENANTS_MAX: Final = 2_000
"""Tenants of one report; further tenants are in the next one."""


def item_charges(part: Chunk) -> list[float]:
    """Return what each item of a part of a batch was charged: its share of the part's tokens."""
    total = sum(item.token_count for item in part.items)
    charged = part.charged or 0.0
    if not total:
        return [charged / len(part.items)] * len(part.items)
    return [charged * item.token_count / total for item in part.items]


class TokenUsage:
    """Corrections of one replica and class. All methods are called on the event loop."""

    def __init__(
        self, producer: RecordProducer, replica_id: str, pool: str, job_class: str
    ) -> None:
        """`replica_id` and `pool` name the replica in reports."""
        self.rates = ComputeRates()
        self._producer = producer
        self._replica_id, self._pool, self._job_class = replica_id, pool, job_class
        self._corrections: dict[UUID, float] = {}  # that are not reported yet, by tenant

    def settle(self, job: JobRef, ended: Iterable[tuple[EngineAnswer | None, float]]) -> None:
        """Settle items of a job that have ended: the answer of each, and what it was charged.

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
        correction = (used - charged) / max(1, job.weight)
        if correction:
            known = self._corrections.get(job.tenant_id, 0.0)
            self._corrections[job.tenant_id] = known + correction

    def publish(self) -> None:
        """Report what was settled since the last report."""
        if not self._corrections or not self._producer.has_space(USAGE.name, 0):
            return
        reported = [*self._corrections.items()][:TENANTS_MAX]
        for tenant_id, _ in reported:
            del self._corrections[tenant_id]
        tenants = [TenantUsage(tenant_id, correction) for tenant_id, correction in reported]
        self._producer.send(
            USAGE.name,
            encode(UsageReport(self._replica_id, self._pool, self._job_class, tenants)),
            partition=0,
            key=f"{self._replica_id}:{self._job_class}".encode(),
            headers=kind_headers(UsageReport),
        )

    async def run(self) -> None:
        """Report repeatedly until cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            self.publish()
