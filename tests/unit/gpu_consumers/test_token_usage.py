"""Goal: a replica reports what items used beyond what batchers charged, once for each item."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest

from core.compute import OUTPUT_WEIGHT_PRIOR
from core.states import CloseReason
from gpu_consumers.engines.engine import EngineAnswer, OnAnswer
from gpu_consumers.flow_control.token_usage import TENANTS_MAX, item_charges
from gpu_consumers.inflight.batch_run import BatchAbortReason
from tests.unit.gpu_consumers.fakes import FaultyEngine
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.catalogue import USAGE
from topics.records.records import Batch, Chunk, Item, JobControl

CHARGED = 300.0


class CountingEngine(FaultyEngine):
    """Each answer has read 100 tokens, of which 60 were cached, and generated 25."""

    answer = EngineAnswer(200, b"{}", input_tokens=100, output_tokens=25, cached_tokens=60)

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer) -> None:
        for index in range(len(bodies)):
            finished(index, self.answer)


def charged_batch(*bodies: bytes, charged: float | None = CHARGED, weight: int = 1) -> Batch:
    batch = batch_of(*bodies)
    (part,) = batch.parts
    job = msgspec.structs.replace(part.job, weight=weight)
    return msgspec.structs.replace(batch, parts=[Chunk(job, part.items, charged=charged)])


async def run(batch: Batch, engine: FaultyEngine | None = None) -> BulkReplica:
    replica = BulkReplica(engine=engine or CountingEngine())
    replica.start_batch(batch)
    await replica.wait_ended()
    return replica


def corrections(replica: BulkReplica) -> dict[UUID, float]:
    replica.capacity.usage.publish()
    return {one.tenant_id: one.correction for report in replica.log.usage for one in report.tenants}


@pytest.mark.parametrize("weight", [1, 3])
async def test_a_tenant_is_charged_the_tokens_that_its_items_used(weight: int) -> None:
    batch = charged_batch(b"{}", b"{}", weight=weight)
    replica = await run(batch)
    used = 2 * (40 + OUTPUT_WEIGHT_PRIOR * 25)
    assert corrections(replica) == {
        batch.parts[0].job.tenant_id: pytest.approx((used - CHARGED) / weight)
    }


async def test_a_correction_is_reported_once() -> None:
    replica = await run(charged_batch(b"{}"))
    replica.capacity.usage.publish()
    replica.capacity.usage.publish()
    assert len(replica.log.usage) == 1


async def test_the_estimate_of_an_engine_that_counts_no_tokens_stays() -> None:
    engine = CountingEngine()
    engine.answer = EngineAnswer(200, b"{}")
    assert corrections(await run(charged_batch(b"{}"), engine)) == {}


async def test_an_item_that_the_engine_refused_used_nothing() -> None:
    engine = CountingEngine()
    engine.answer = EngineAnswer(400, b"{}")
    batch = charged_batch(b"{}")
    replica = await run(batch, engine)
    assert corrections(replica) == {batch.parts[0].job.tenant_id: pytest.approx(-CHARGED)}


async def test_items_of_a_closed_job_are_refunded() -> None:
    replica, batch = BulkReplica(engine=CountingEngine()), charged_batch(b"{}", b"{}")
    job = batch.parts[0].job
    replica.controls.by_job[job.job_id] = JobControl(job.job_id, 9, closed=CloseReason.CANCELLED)
    replica.start_batch(batch)
    await replica.wait_ended()
    assert corrections(replica) == {job.tenant_id: pytest.approx(-CHARGED)}


@pytest.mark.parametrize("reason", [BatchAbortReason.REQUEUE, BatchAbortReason.LOST])
async def test_aborted_items_are_refunded_unless_their_next_owner_settles_them(
    reason: BatchAbortReason,
) -> None:
    replica, batch = BulkReplica(engine=CountingEngine()), charged_batch(b"{}", b"{}")
    replica.start_batch(batch)
    (run_,) = replica.execution.runs
    run_.abort(reason)
    await replica.wait_ended()
    refunded = {batch.parts[0].job.tenant_id: pytest.approx(-CHARGED)}
    assert corrections(replica) == ({} if reason is BatchAbortReason.LOST else refunded)


async def test_a_batch_of_an_older_batcher_is_not_settled() -> None:
    assert corrections(await run(charged_batch(b"{}", charged=None))) == {}


async def test_a_report_waits_for_space_and_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = BulkReplica(engine=CountingEngine())
    usage, job = replica.capacity.usage, batch_of(b"{}").parts[0].job
    for number in range(TENANTS_MAX + 5):
        tenant_id = UUID(int=number + 1)
        usage.settle(msgspec.structs.replace(job, tenant_id=tenant_id), [(None, 1.0)])
    with monkeypatch.context() as patch:
        patch.setattr(replica.log, "has_space", lambda topic, _: topic != USAGE.name)
        usage.publish()
    assert replica.log.usage == []
    usage.publish()
    usage.publish()
    assert [len(report.tenants) for report in replica.log.usage] == [TENANTS_MAX, 5]


@pytest.mark.parametrize("tokens", [[0, 0], [10, 30]])
def test_the_charge_of_a_part_is_divided_by_the_tokens_of_its_items(tokens: list[int]) -> None:
    items = [Item(index, "c", b"", count) for index, count in enumerate(tokens)]
    charges = item_charges(Chunk(batch_of(b"{}").parts[0].job, items, charged=80.0))
    assert charges == ([40.0, 40.0] if not sum(tokens) else [20.0, 60.0])
