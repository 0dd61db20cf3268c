"""Goal: every call ends once: with an answer, an error, a requeue, or without its caller."""

import asyncio
import gc
from typing import Any
from uuid import UUID

import pytest

from core.outcomes import Outcome
from core.runtime.supervised_tasks import TaskCancelledError
from gpu_consumers.cancellation import liveness
from gpu_consumers.engines.error_answers import error_code_of
from gpu_consumers.inflight.online_call import CallAbortReason, OnlineCall
from gpu_consumers.inflight.replies import PIECE_BYTES_MAX
from gpu_consumers.online import call_execution
from tests.unit.gpu_consumers.fakes import run_loop
from tests.unit.gpu_consumers.replicas import OnlineReplica, call_chunk


async def test_a_stream_is_forwarded_and_billed_once(replica: OnlineReplica) -> None:
    await replica.hold(call_chunk())
    assert replica.log.pieces == [b"1"]
    replica.engine.gate.set()
    await replica.wait_ended()

    assert replica.log.pieces == [b"1", b"2"]
    (end,) = replica.log.ends
    assert (end.status_code, end.body, end.input_tokens, end.output_tokens) == (200, b"", 3, 2)
    assert end.waited_s == 0.25
    assert (replica.finished_count, replica.capacity.in_flight, replica.log.outcomes) == (1, 0, [])
    (bill,) = replica.log.bills
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.SUCCEEDED, 3, 2)
    assert bill.body == b""


async def test_a_batch_is_finished_with_its_last_call(replica: OnlineReplica) -> None:
    await replica.hold(call_chunk(1), call_chunk(2, stream=False))
    replica.receive_caller_record(aborted=[UUID(int=1)])
    await run_loop()
    assert (replica.finished_count, replica.engine.running) == (0, 1)
    replica.engine.gate.set()
    await replica.wait_ended()
    assert replica.finished_count == 1


@pytest.mark.parametrize(
    ("stream", "durable", "statuses", "tokens"),
    [(True, False, [499], (3, 7)), (False, False, [499], (0, 0)), (True, True, [409], (0, 7))],
)
async def test_an_aborted_call_is_billed_and_its_caller_gets_the_usage(
    replica: OnlineReplica,
    stream: bool,
    durable: bool,
    statuses: list[int],
    tokens: tuple[int, int],
) -> None:
    await replica.hold(call_chunk(stream=stream, durable=durable))
    replica.receive_caller_record(aborted=[UUID(int=1)])
    await replica.wait_ended()
    assert (replica.engine.running, replica.finished_count) == (0, 1)
    assert replica.log.statuses == statuses
    (end,) = replica.log.ends
    assert durable or (end.input_tokens, end.output_tokens) == tokens
    assert end.execution_s > 0
    (bill,) = replica.log.outcomes if durable else replica.log.bills
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.CANCELLED, *tokens)


async def test_an_aborted_whole_call_reports_what_was_executed_and_is_billed_nothing(
    replica: OnlineReplica,
) -> None:
    replica.engine.counts_whole_calls = True
    await replica.hold(call_chunk(stream=False))
    replica.receive_caller_record(aborted=[UUID(int=1)])
    await replica.wait_ended()
    (end,) = replica.log.ends
    assert (end.status_code, end.input_tokens, end.output_tokens) == (499, 3, 7)
    (bill,) = replica.log.bills
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.CANCELLED, 0, 0)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_whole_call_past_its_deadline_reports_what_was_executed(
    replica: OnlineReplica, durable: bool
) -> None:
    replica.engine.counts_whole_calls = True
    await replica.hold(call_chunk(stream=False, durable=durable))
    (call,) = replica.execution._running.values()
    call.abort(CallAbortReason.DEADLINE)
    await replica.wait_ended()
    (end,) = replica.log.ends
    assert (end.status_code, end.input_tokens, end.output_tokens) == (504, 3, 7)
    (cost,) = replica.log.outcomes if durable else replica.log.bills
    assert (cost.outcome, cost.input_tokens, cost.output_tokens) == (Outcome.EXPIRED, 0, 0)


LATE, OVERDUE, EXPIRED = (504, "deadline_exceeded"), (504, "queue_timeout"), (Outcome.EXPIRED, 504)


@pytest.mark.parametrize(
    ("callers", "durable", "ends", "outcomes"),
    [
        ({"gone": True}, False, [], []),
        ({"expired": True}, False, [LATE], []),
        ({"expired": True}, True, [LATE], [EXPIRED]),
        *(({"patience": wait_s}, False, [OVERDUE], []) for wait_s in (-1.0, 0.01)),
        *(({"patience": wait_s}, True, [OVERDUE], [EXPIRED]) for wait_s in (-1.0, 0.01)),
        ({"closed": True}, True, [(409, "cancelled")], []),  # the close record has its end
    ],
)
async def test_an_obsolete_call_does_not_run_and_is_not_billed(
    replica: OnlineReplica,
    callers: dict[str, Any],
    durable: bool,
    ends: list[tuple[int, str]],
    outcomes: list[tuple[Outcome, int]],
) -> None:
    replica.engine.is_full = True
    vars(replica.callers).update(callers)
    replica.start_batch(call_chunk(durable=durable))
    await replica.wait_ended()
    assert (replica.engine.served, replica.finished_count, replica.log.bills) == (0, 1, [])
    assert [(e.status_code, error_code_of(e.body)) for e in replica.log.ends] == ends
    assert [(o.outcome, o.status_code) for o in replica.log.outcomes] == outcomes


async def test_the_start_timeout_does_not_abort_a_started_call(replica: OnlineReplica) -> None:
    replica.callers.patience = 0.01
    await replica.hold(call_chunk())
    (call,) = replica.execution._running.values()
    assert call._start_timeout is None
    replica.engine.gate.set()
    await replica.wait_ended()
    assert replica.log.statuses == [200]


async def test_a_requeued_call_that_had_started_has_no_start_limit(replica: OnlineReplica) -> None:
    await replica.hold(call_chunk(1, stream=False, begin_by_s=5.0))
    replica.engine.is_unavailable = True
    await replica.hold(call_chunk(2, begin_by_s=5.0))
    replica.worker.requeue_all()
    replica.start_batch(call_chunk(3, begin_by_s=5.0))
    await replica.wait_ended()
    start_limits = {
        c.job.job_id.int: c.job.call.begin_by_s
        for c in replica.log.requeued
        if c.job.call is not None
    }
    assert start_limits == {1: 0.0, 2: 0.0, 3: 5.0}


async def test_a_redelivered_call_has_no_start_limit(replica: OnlineReplica) -> None:
    replica.callers.patience = -1.0
    replica.engine.gate.set()
    replica.start_batch(call_chunk(1, begin_by_s=5.0), is_redelivered=True)
    await replica.hold(call_chunk(2, begin_by_s=5.0, durable=True), is_redelivered=True)
    replica.receive_caller_record(permitted=[UUID(int=1)])
    await replica.wait_ended()
    assert replica.log.statuses == [200, 200]


async def test_an_ended_call_is_not_referenced(replica: OnlineReplica) -> None:
    replica.callers.patience = 60.0
    replica.engine.gate.set()
    gc.disable()
    try:
        before = sum(isinstance(thing, OnlineCall) for thing in gc.get_objects())
        replica.start_batch(
            *(call_chunk(number, stream=False, begin_by_s=5.0) for number in range(50))
        )
        await replica.wait_ended()
        await run_loop()
        left = sum(isinstance(thing, OnlineCall) for thing in gc.get_objects()) - before
    finally:
        gc.enable()
    assert left <= 1


async def test_a_call_of_a_silent_caller_is_aborted_by_the_periodic_check(
    replica: OnlineReplica,
) -> None:
    await replica.hold(call_chunk())
    replica.callers.gone, replica.callers.alive = True, False
    checking = asyncio.create_task(replica.execution.abort_obsolete_calls())
    while replica.engine.running:
        await run_loop()
    checking.cancel()
    await replica.wait_ended()
    assert (replica.finished_count, replica.log.statuses) == (1, [502])


async def test_a_call_starts_when_its_silent_caller_is_not_known_to_be_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "HEARTBEAT_WAIT_S", 0.01)
    replica = OnlineReplica()
    replica.engine.gate.set()
    replica.callers.alive = False  # silent, but not known to be dead
    await replica.hold(call_chunk())
    assert replica.engine.served == 0
    await replica.wait_ended()
    assert replica.log.statuses == [200]


async def test_a_durable_call_does_not_wait_for_a_heartbeat(replica: OnlineReplica) -> None:
    replica.engine.gate.set()
    replica.callers.alive = False
    await replica.hold(call_chunk(durable=True))
    assert replica.engine.served == 1
    await replica.wait_ended()


async def test_a_late_heartbeat_lets_the_call_run_despite_the_periodic_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_execution, "ABORT_CHECK_S", 0.0)
    replica = OnlineReplica()
    replica.engine.gate.set()
    replica.callers.gone, replica.callers.alive = True, False
    replica.start_batch(call_chunk())
    checking = asyncio.create_task(replica.execution.abort_obsolete_calls())
    await run_loop()  # many checks
    assert replica.engine.served == 0
    replica.callers.gone, replica.callers.alive = False, True
    await replica.wait_ended()
    checking.cancel()
    assert replica.log.statuses == [200]


async def test_a_call_aborted_while_its_heartbeat_arrives_ends_as_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "_HEARTBEAT_POLL_S", 0.0)
    replica = OnlineReplica()
    replica.callers.gone, replica.callers.alive = True, False
    replica.start_batch(call_chunk())
    for _ in range(3):
        await asyncio.sleep(0)  # now each iteration runs one poll of the call
    replica.callers.gone, replica.callers.alive = False, True
    replica.receive_caller_record(aborted=[UUID(int=1)])
    await replica.wait_ended()
    assert (replica.engine.running, replica.finished_count, replica.log.statuses) == (0, 1, [])


async def test_an_unexpected_cancellation_fails_the_process(replica: OnlineReplica) -> None:
    await replica.hold(call_chunk())
    (task,) = (t for t in asyncio.all_tasks() if t is not asyncio.current_task())
    task.cancel()
    with pytest.raises(TaskCancelledError):
        await replica.wait_ended()
    assert replica.finished_count == 0


async def test_a_cancellation_by_the_shutdown_is_no_failure(replica: OnlineReplica) -> None:
    await replica.hold(call_chunk())
    replica.tasks.cancel_all()
    await replica.wait_ended()
    assert replica.finished_count == 0


@pytest.mark.parametrize("durable", [False, True])
async def test_a_durable_answer_is_sent_after_its_outcome_is_acknowledged(
    replica: OnlineReplica, durable: bool
) -> None:
    replica.log.unacknowledged_kind = "outcomes"
    replica.engine.gate.set()
    await replica.hold(call_chunk(durable=durable))
    assert replica.log.pieces == [b"1", b"2"]  # pieces wait for no acknowledgement
    assert replica.log.statuses == ([] if durable else [200])
    assert replica.finished_count == 0
    replica.log.acknowledge()
    await replica.wait_ended()
    assert (replica.log.statuses, replica.finished_count) == ([200], 1)


async def test_an_unavailable_pool_requeues_a_call_to_run_later(replica: OnlineReplica) -> None:
    replica.engine.is_unavailable = True
    replica.start_batch(call_chunk())
    await replica.wait_ended()
    (chunk,) = replica.log.requeued
    assert (chunk.job, chunk.redelivered) == (call_chunk().job, False)
    assert (replica.finished_count, replica.log.statuses) == (1, [])
    replica.engine.is_unavailable = False
    await replica.complete(chunk)
    assert replica.log.statuses == [200]


async def test_a_call_whose_partition_moves_is_reported_as_only_here_until_it_is_requeued(
    replica: OnlineReplica,
) -> None:
    await replica.hold(call_chunk(2, stream=False))
    await replica.hold(call_chunk(3, stream=False, durable=True))
    calls = replica.worker.execution._running.values()
    (place,) = {call.partition for call in calls}
    await replica.worker.on_revoke([("other", 1)], lost=False)
    assert not any(reply.only_here for reply in replica.log.replies)
    await replica.worker.on_revoke([place], lost=False)
    replica.worker.requeue_all()
    await replica.worker.on_revoke([place], lost=False)
    await replica.wait_ended()
    moved = [reply.only_here for reply in replica.log.replies if reply.request_id.int == 2]
    assert moved == [True, False]
    assert not any(r.only_here for r in replica.log.replies if r.request_id.int == 3)


@pytest.mark.parametrize("state", ["is_revoked", "is_requeued", "draining", "waiting"])
async def test_a_call_that_another_replica_may_run_is_not_reported_as_only_here(
    replica: OnlineReplica, state: str
) -> None:
    await replica.hold(call_chunk(2, stream=False))
    (call,) = replica.worker.execution._running.values()
    if state == "draining":
        replica.worker.drain()
    elif state == "waiting":
        call.has_started = False
    else:
        setattr(call, state, True)
    await replica.worker.on_revoke([call.partition], lost=False)
    assert not any(reply.only_here for reply in replica.log.replies)


async def test_a_drain_requeues_calls_without_pieces_and_ends_other_streams(
    replica: OnlineReplica,
) -> None:
    await replica.hold(call_chunk(1), call_chunk(2, stream=False))
    replica.worker.drain()
    await replica.hold(call_chunk(3), is_redelivered=True)
    assert [(c.job.job_id.int, c.redelivered) for c in replica.log.requeued] == [(3, True)]
    replica.worker.requeue_all()
    await replica.wait_ended()
    assert [c.job.job_id.int for c in replica.log.requeued] == [3, 2]
    (end,) = replica.log.ends
    assert (end.status_code, end.input_tokens, end.output_tokens) == (503, 3, 7)
    assert [(bill.outcome, bill.output_tokens) for bill in replica.log.bills] == [
        (Outcome.FAILED, 7)
    ]
    assert b"stream_interrupted" in end.body
    assert replica.finished_count == 2


async def test_a_piece_that_fits_no_record_interrupts_its_stream(replica: OnlineReplica) -> None:
    replica.engine.piece = b"x" * (PIECE_BYTES_MAX + 1)
    await replica.complete(call_chunk())
    assert (replica.log.pieces, replica.log.statuses) == ([], [502])
    assert replica.finished_count == 1
