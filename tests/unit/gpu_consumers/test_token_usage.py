"""Goal: a replica reports what items used beyond what batchers charged, once for each item."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest

from core.compute import OUTPUT_WEIGHT_PRIOR
from core.states import CloseReason
from gpu_consumers.engines.engine import EngineAnswer, OnAnswer
from gpu_consumers.flow_control.token_usage import JOBS_MAX, TENANTS_MAX, item_charges
from gpu_consumers.inflight.batch_run import BatchAbortReason
from tests.unit.gpu_consumers.fakes import FaultyEngine, run_loop
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica, batch_of, call_chunk
from topics.records.catalogue import USAGE
from topics.records.records import Batch, Chunk, Item, JobControl, JobUsage

CHARGED = 300.0


class CountingEngine(FaultyEngine):
    """Each answer has read 100 tokens, of which 60 were cached, and generated 25."""

    answer = EngineAnswer(200, b"{}", input_tokens=100, output_tokens=25, cached_tokens=60)

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
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


def corrections(replica: BulkReplica | OnlineReplica) -> dict[UUID, float]:
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


async def test_the_batcher_that_charged_a_job_is_told_what_the_job_used() -> None:
    batch = charged_batch(b"{}", b"{}", weight=3)
    replica = await run(batch)
    replica.capacity.usage.publish()
    (report,) = replica.log.usage
    job, used = batch.parts[0].job, 2 * (40 + OUTPUT_WEIGHT_PRIOR * 25)
    assert report.jobs == [JobUsage(batch.batcher_id, job.tenant_id, job.job_id, used - CHARGED)]


async def test_jobs_beyond_one_report_are_in_the_next_one() -> None:
    job = charged_batch(b"{}").parts[0].job
    replica = BulkReplica()
    for number in range(JOBS_MAX + 1):
        one = msgspec.structs.replace(job, job_id=UUID(int=number))
        replica.capacity.usage.settle(one, [(None, 1.0)], batcher_id="b")
    replica.capacity.usage.publish()
    replica.capacity.usage.publish()
    replica.capacity.usage.publish()
    assert [len(report.jobs) for report in replica.log.usage] == [JOBS_MAX, 1]


async def test_a_correction_is_reported_once() -> None:
    replica = await run(charged_batch(b"{}"))
    replica.capacity.usage.publish()
    replica.capacity.usage.publish()
    assert len(replica.log.usage) == 1


@pytest.mark.parametrize("status", [200, 400, 504])
async def test_the_estimate_of_an_answer_without_token_counts_stays(status: int) -> None:
    """An item that timed out has used the engine, and one tenant could send nothing else."""
    engine = CountingEngine()
    engine.answer = EngineAnswer(status, b"{}")
    assert corrections(await run(charged_batch(b"{}"), engine)) == {}


async def test_a_redelivered_batch_is_not_settled() -> None:
    replica = BulkReplica(engine=CountingEngine())
    replica.start_batch(charged_batch(b"{}", b"{}"), is_redelivered=True)
    await replica.wait_ended()
    assert len(replica.log.outcomes) == 2
    assert corrections(replica) == {}


async def test_aborted_items_of_a_closed_job_keep_their_estimate() -> None:
    replica, batch = BulkReplica(), charged_batch(b"hold")
    replica.engine.gate.clear()
    job = batch.parts[0].job
    replica.start_batch(batch)
    await run_loop()
    replica.controls.by_job[job.job_id] = JobControl(job.job_id, 9, closed=CloseReason.CANCELLED)
    (run_,) = replica.execution.runs
    run_.abort(BatchAbortReason.OBSOLETE)
    await replica.wait_ended()
    assert corrections(replica) == {}


async def test_items_that_are_dropped_before_they_run_are_refunded() -> None:
    replica, batch = BulkReplica(engine=CountingEngine()), charged_batch(b"{}", b"{}")
    job = batch.parts[0].job
    replica.controls.by_job[job.job_id] = JobControl(job.job_id, 9, closed=CloseReason.CANCELLED)
    replica.start_batch(batch)
    await replica.wait_ended()
    assert corrections(replica) == {job.tenant_id: pytest.approx(-CHARGED)}


@pytest.mark.parametrize("reason", [BatchAbortReason.REQUEUE, BatchAbortReason.LOST])
async def test_requeued_items_are_refunded_and_those_of_a_lost_batch_are_not(
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


def charged_call() -> Chunk:
    return msgspec.structs.replace(call_chunk(), charged=CHARGED)


def used(prompt: int, output: int) -> float:
    return prompt + OUTPUT_WEIGHT_PRIOR * output


async def test_a_call_is_charged_the_tokens_that_it_used() -> None:
    replica = OnlineReplica()
    await replica.complete(charged_call())
    assert [*corrections(replica).values()] == [pytest.approx(used(3, 2) - CHARGED)]


async def test_an_aborted_call_is_charged_what_it_had_used() -> None:
    replica = OnlineReplica()
    await replica.hold(charged_call())
    replica.receive_caller_record(aborted=[UUID(int=1)])
    await replica.wait_ended()
    assert [*corrections(replica).values()] == [pytest.approx(used(3, 7) - CHARGED)]


@pytest.mark.parametrize("callers", [{"gone": True}, {"expired": True}])
async def test_a_call_that_does_not_run_is_refunded(callers: dict[str, bool]) -> None:
    replica = OnlineReplica()
    vars(replica.callers).update(callers)
    replica.start_batch(charged_call())
    await replica.wait_ended()
    assert [*corrections(replica).values()] == [pytest.approx(-CHARGED)]


async def test_a_requeued_call_is_refunded() -> None:
    replica = OnlineReplica()
    replica.engine.is_unavailable = True
    replica.start_batch(charged_call())
    await replica.wait_ended()
    assert len(replica.log.requeued) == 1
    assert [*corrections(replica).values()] == [pytest.approx(-CHARGED)]


async def test_the_second_delivery_of_a_completed_call_is_refunded() -> None:
    replica = OnlineReplica()
    await replica.complete(charged_call())
    corrections(replica)
    replica.log.usage.clear()
    replica.start_batch(charged_call())
    await replica.wait_ended()
    assert [*corrections(replica).values()] == [pytest.approx(-CHARGED)]


async def test_an_online_call_is_charged_to_no_job() -> None:
    replica = OnlineReplica()
    await replica.complete(charged_call())
    replica.capacity.usage.publish()
    (report,) = replica.log.usage
    assert (len(report.tenants), report.jobs) == (1, [])
