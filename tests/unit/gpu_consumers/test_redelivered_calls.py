"""Goal: a redelivered call runs again only without a known end and with permission."""

import asyncio
from uuid import UUID, uuid4

import pytest

from api.online.await_reply.open_calls import OpenCall
from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.online.call_execution import CompletedCalls
from gpu_consumers.quarantine import redelivered_calls
from gpu_consumers.quarantine.redelivered_calls import RerunPermissions
from tests.unit.gpu_consumers.fakes import run_loop
from tests.unit.gpu_consumers.replicas import OnlineReplica, call_chunk
from topics.records.records import CallRef


async def test_a_redelivered_call_waits_for_permission(replica: OnlineReplica) -> None:
    await replica.hold(call_chunk(), is_redelivered=True)
    assert (replica.engine.served, replica.log.permission_requests) == (0, [UUID(int=1)])
    replica.receive_caller_record(permitted=[UUID(int=1)])
    replica.engine.gate.set()
    await replica.wait_ended()
    assert (replica.log.statuses, replica.finished_count) == ([200], 1)


async def test_a_call_without_permission_does_not_run_and_gets_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redelivered_calls, "PERMISSION_S_MAX", 0.0)
    replica = OnlineReplica()
    replica.start_batch(call_chunk(), is_redelivered=True)
    await replica.wait_ended()
    assert replica.log.permission_requests == [UUID(int=1)] * redelivered_calls.REQUESTS_MAX
    assert (replica.engine.served, replica.log.statuses, replica.log.bills) == (0, [502], [])
    assert replica.finished_count == 1


async def test_an_aborted_call_does_not_wait_for_permission(replica: OnlineReplica) -> None:
    await replica.hold(call_chunk(), is_redelivered=True)
    replica.receive_caller_record(aborted=[UUID(int=1)])
    await run_loop()
    assert (replica.finished_count, replica.log.statuses) == (1, [])


async def test_a_redelivered_durable_call_runs_without_permission(replica: OnlineReplica) -> None:
    replica.engine.gate.set()
    replica.engine.answer = EngineAnswer(200, b'{"a":1}', 3, 2)
    replica.start_batch(call_chunk(stream=False, durable=True), is_redelivered=True)
    await replica.wait_ended()
    assert (replica.log.permission_requests, replica.log.statuses) == ([], [200])
    (outcome,) = replica.log.outcomes
    assert (outcome.outcome, outcome.body) == (
        Outcome.SUCCEEDED,
        b'{"a":1,"system_fingerprint":"m@1"}',
    )


async def test_a_second_delivery_runs_nothing_and_ends_with_the_first(
    replica: OnlineReplica,
) -> None:
    replica.start_batch(call_chunk())
    await replica.hold(call_chunk(), is_redelivered=True)
    assert replica.finished_count == 0
    replica.engine.gate.set()
    await replica.wait_ended()
    replica.start_batch(call_chunk())
    await replica.wait_ended()
    assert (replica.finished_count, replica.engine.served, replica.log.permission_requests) == (
        3,
        1,
        [],
    )
    assert replica.capacity.in_flight == 0


@pytest.mark.parametrize("durable", [False, True])
async def test_a_requeued_call_that_returns_before_its_acknowledgement_runs(
    replica: OnlineReplica, durable: bool
) -> None:
    replica.engine.is_unavailable, replica.log.unacknowledged_kind = True, "chunk"
    await replica.hold(call_chunk(durable=durable))
    (chunk,) = replica.log.requeued
    replica.engine.is_unavailable = False
    replica.engine.gate.set()
    replica.start_batch(chunk)
    await replica.hold(chunk)
    assert (replica.engine.served, replica.finished_count) == (0, 0)
    replica.log.acknowledge()
    await replica.wait_ended()
    assert (replica.engine.served, replica.log.statuses, replica.finished_count) == (1, [200], 3)
    assert replica.capacity.in_flight == 0


async def test_a_caller_gets_one_answer_from_two_replicas() -> None:
    """The partition moves while the call waits for a slot, so that both replicas run its batch."""
    before, after = OnlineReplica(), OnlineReplica()
    before.engine.is_full, before.engine.piece = True, b"0"
    batch_id, chunk = uuid4(), call_chunk()
    before.start_batch(chunk, batch_id=batch_id)
    after.start_batch(chunk, batch_id=batch_id, is_redelivered=True)
    await run_loop()
    after.receive_caller_record(permitted=[UUID(int=1)])
    await run_loop()
    for replica in (before, after):
        replica.engine.gate.set()
        await replica.wait_ended()
    first, *others = after.log.replies
    call = OpenCall(chunk.job, now_s=0.0)
    for reply in [first, *before.log.replies, *others]:
        call.receive_reply(reply, replica_id="r", now_s=1.0)
    assert before.log.pieces == [b"0", b"2"]
    assert call.pieces == after.log.pieces == [b"1", b"2"]


ID = UUID(int=1)


async def test_the_time_limit_starts_with_the_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redelivered_calls, "PERMISSION_S_MAX", 0.0)
    acknowledged = asyncio.get_running_loop().create_future()
    permissions = RerunPermissions(lambda *_: acknowledged)
    waiting = asyncio.create_task(permissions.request_rerun(CallRef("c1", 3), ID))
    await run_loop(1000)
    assert not waiting.done()
    acknowledged.set_result(None)
    await run_loop(3)
    permissions.grant([ID])
    assert await waiting


async def test_a_permission_before_the_acknowledgement_counts() -> None:
    unacknowledged = asyncio.get_running_loop().create_future()
    permissions = RerunPermissions(lambda *_: unacknowledged)
    waiting = asyncio.create_task(permissions.request_rerun(CallRef("c1", 3), ID))
    await run_loop()
    permissions.grant([UUID(int=2), ID, ID])
    assert await waiting
    permissions.grant([ID])


def test_completed_calls_are_remembered_up_to_a_limit() -> None:
    completed = CompletedCalls(count_max=2)
    for number in (1, 2, 3):
        completed.add(UUID(int=number))
    assert [UUID(int=number) in completed for number in (1, 2, 3)] == [False, True, True]
