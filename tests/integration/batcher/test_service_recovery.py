"""Goal: a tenant that was ahead of others is still ahead after a kill -9 of its batcher."""

from collections import Counter
from uuid import UUID

from tests.integration.batcher.harness import POOL, Bench, job_ref
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SERVICE, USAGE
from topics.records.codec import decode, encode, kind_headers
from topics.records.records import Batch, ServiceReport, TenantUsage, UsageReport
from topics.tail_readers.topic_tail_reader import TopicTailReader

LIGHT, HEAVY = job_ref(1), job_ref(2)
ITEMS = 4000
LEAD_TOKENS = 10.0 * ITEMS  # as many as all items of a tenant are charged
SESSION = {"MILLRACE_KAFKA_SESSION_TIMEOUT_S": 2}


def reported_leads(service: TopicTailReader, seen: dict[UUID, float]) -> dict[UUID, float]:
    """Return the newest reported leads."""
    for record in service.poll(0.1):
        report = decode(ServiceReport, record.value, record.headers)
        seen |= {one.tenant_id: one.lead for one in report.pools.get(POOL, [])}
    return seen


def test_a_lead_survives_a_kill(bench: Bench) -> None:
    replica = bench.start_replica(window=100, items_per_s=400)
    for job in (LIGHT, HEAVY):
        bench.requests.send(job, ITEMS)
    service = TopicTailReader(bench.kafka, SERVICE, client_id="test-service")
    usage = RecordProducer(bench.kafka, client_id="test-usage", linger_ms=0)
    try:
        batcher = bench.start_batcher(**SESSION)
        until(lambda: len({job for job, _ in replica.items()}) == 2)
        tenants = [TenantUsage(HEAVY.tenant_id, LEAD_TOKENS)]
        report = UsageReport(f"replica-{POOL}", POOL, "bulk", tenants)
        usage.send(USAGE.name, encode(report), partition=0, headers=kind_headers(UsageReport))
        usage.flush(20)
        seen: dict[UUID, float] = {}
        until(lambda: reported_leads(service, seen).get(HEAVY.tenant_id, 0) > LEAD_TOKENS / 2)
    finally:
        service.close()
        usage.close()
    batcher.kill()
    before = len(replica.batches)
    bench.start_batcher(**SESSION)
    until(lambda: _items_of(replica.batches[before:]).total() >= 1000)
    after = _items_of(replica.batches[before:])
    # The first records may be those of HEAVY alone; level tenants would get half each.
    assert after[LIGHT.job_id] >= 0.7 * after.total()


def _items_of(batches: list[Batch]) -> Counter[UUID]:
    found: Counter[UUID] = Counter()
    for batch in batches:
        for part in batch.parts:
            found[part.job.job_id] += len(part.items)
    return found
