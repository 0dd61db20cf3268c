"""Goal: every call ends once: answered, told why not, put back, or dropped with its caller."""

import asyncio
import gc
from uuid import UUID

import pytest

from core.outcomes import Outcome
from core.supervised_tasks import TaskCancelledError
from gpu_consumers.cancellation import liveness
from gpu_consumers.inflight.online_call import OnlineCall
from gpu_consumers.inflight.replies import PIECE_BYTES_MAX
from gpu_consumers.online import call_execution
from tests.unit.gpu_consumers.online_bench import OnlineBench, call


async def test_a_stream_is_forwarded_as_it_comes_and_its_end_counts_tokens() -> None:
    bench = OnlineBench()
    bench.begin(call())
    await bench.settle()
    assert bench.log.pieces() == [b"1"]
    bench.engine.go.set()
    await bench.end()

    assert bench.log.pieces() == [b"1", b"2"]
    (end,) = [r.end for r in bench.log.replies if r.end is not None]
    assert (end.status_code, end.body, end.input_tokens, end.output_tokens) == (200, b"", 3, 2)
    assert end.waited_s == 0.25
    assert (bench.finished, bench.capacity.in_flight, bench.log.outcomes) == (1, 0, [])


async def test_a_batch_is_finished_with_its_last_call() -> None:
    bench = OnlineBench()
    bench.begin(call(1), call(2, stream=False))
    await bench.settle()
    bench.news(aborted=[UUID(int=1)])
    await bench.settle()
    assert (bench.finished, bench.engine.running) == (0, 1)
    bench.engine.go.set()
    await bench.end()
    assert bench.finished == 1


async def test_a_call_nobody_waits_for_is_aborted_without_a_word() -> None:
    bench = OnlineBench()
    bench.begin(call())
    await bench.settle()
    bench.news(aborted=[UUID(int=1)])
    await bench.settle()
    assert (bench.engine.running, bench.finished, bench.log.statuses()) == (0, 1, [])
    (bill,) = bench.log.bills
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.CANCELLED, 3, 7)


async def test_a_whole_call_nobody_waits_for_delivered_nothing() -> None:
    bench = OnlineBench()
    bench.begin(call(stream=False))
    await bench.settle()
    bench.news(aborted=[UUID(int=1)])
    await bench.settle()
    (bill,) = bench.log.bills
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.CANCELLED, 0, 0)


async def test_an_answered_call_is_billed_once() -> None:
    bench = OnlineBench()
    bench.engine.go.set()
    bench.begin(call())
    await bench.end()
    (bill,) = bench.log.bills
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.SUCCEEDED, 3, 2)
    assert (bill.body, bench.finished) == (b"", 1)


async def test_calls_of_gone_callers_are_not_executed() -> None:
    bench = OnlineBench()
    bench.known.gone = True
    bench.begin(call())
    await bench.end()
    assert (bench.engine.served, bench.finished, bench.log.statuses()) == (0, 1, [])
    assert bench.log.bills == []


@pytest.mark.parametrize("durable", [False, True])
async def test_an_expired_call_is_not_executed_and_says_so(durable: bool) -> None:
    bench = OnlineBench()
    bench.known.expired = True
    bench.begin(call(durable=durable))
    await bench.end()
    assert (bench.engine.served, bench.log.statuses()) == (0, [504])
    assert [(o.outcome, o.status_code) for o in bench.log.outcomes] == [
        (Outcome.EXPIRED, 504)
    ] * durable


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("patience_s", [-1.0, 0.01])
async def test_an_overdue_call_is_not_begun_and_says_so(durable: bool, patience_s: float) -> None:
    bench = OnlineBench()
    bench.engine.full = True
    bench.known.patience = patience_s
    bench.begin(call(durable=durable))
    await bench.end()
    assert (bench.engine.served, bench.log.statuses(), bench.log.bills) == (0, [504], [])
    (end,) = [reply.end for reply in bench.log.replies]
    assert end is not None
    assert b'"queue_timeout"' in end.body
    assert [(o.outcome, o.status_code) for o in bench.log.outcomes] == [
        (Outcome.EXPIRED, 504)
    ] * durable


async def test_a_call_that_has_begun_waits_no_more() -> None:
    bench = OnlineBench()
    bench.known.patience = 0.01
    bench.begin(call())
    await asyncio.sleep(0.05)
    bench.engine.go.set()
    await bench.end()
    assert bench.log.statuses() == [200]


async def test_a_call_that_has_begun_and_goes_back_need_not_begin_in_time_again() -> None:
    bench = OnlineBench()
    bench.begin(call(1, stream=False, begin_by_s=5.0))
    await bench.settle()
    bench.engine.away = True
    bench.begin(call(2, begin_by_s=5.0))
    await bench.settle()
    bench.execution.hand_back()
    bench.begin(call(3, begin_by_s=5.0))
    await bench.end()
    moments = {
        c.job.job_id.int: c.job.call.begin_by_s
        for c in bench.log.put_back
        if c.job.call is not None
    }
    assert moments == {1: 0.0, 2: 0.0, 3: 5.0}


async def test_a_call_that_was_delivered_before_is_not_judged_by_its_wait() -> None:
    bench = OnlineBench()
    bench.known.patience = -1.0
    bench.engine.go.set()
    bench.begin(call(1, begin_by_s=5.0), may_have_run=True)
    bench.begin(call(2, begin_by_s=5.0, durable=True), may_have_run=True)
    await bench.settle()
    bench.news(permitted=[UUID(int=1)])
    await bench.end()
    assert bench.log.statuses() == [200, 200]


async def test_what_has_ended_is_held_by_nothing() -> None:
    bench = OnlineBench()
    bench.known.patience = 60.0
    bench.engine.go.set()
    gc.disable()
    try:
        before = sum(isinstance(thing, OnlineCall) for thing in gc.get_objects())
        bench.begin(*(call(number, stream=False, begin_by_s=5.0) for number in range(50)))
        await bench.end()
        await bench.settle()
        left = sum(isinstance(thing, OnlineCall) for thing in gc.get_objects()) - before
    finally:
        gc.enable()
    assert left <= 1


async def test_a_silent_callers_call_is_aborted_by_the_watch() -> None:
    bench = OnlineBench()
    bench.begin(call())
    await bench.settle()
    bench.known.gone, bench.known.alive = True, False
    watching = asyncio.create_task(bench.execution.watch())
    while bench.engine.running:
        await bench.settle()
    watching.cancel()
    await bench.end()
    assert (bench.finished, bench.log.statuses()) == (1, [502])


async def test_a_caller_that_is_heard_a_little_late_has_its_call_run() -> None:
    bench = OnlineBench()
    bench.engine.go.set()
    bench.known.gone, bench.known.alive = True, False
    bench.begin(call())
    await bench.settle()
    assert bench.engine.served == 0
    bench.known.gone, bench.known.alive = False, True
    await bench.end()
    assert bench.log.statuses() == [200]


async def test_a_call_is_begun_where_nobody_can_know_whether_its_caller_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "NEWS_WAIT_S", 0.01)
    bench = OnlineBench()
    bench.engine.go.set()
    bench.known.alive = False  # silent, and not known to be gone
    bench.begin(call())
    await bench.settle()
    assert bench.engine.served == 0
    await bench.end()
    assert bench.log.statuses() == [200]


async def test_a_durable_call_waits_for_no_news() -> None:
    bench = OnlineBench()
    bench.engine.go.set()
    bench.known.alive = False
    bench.begin(call(durable=True))
    await bench.settle()
    assert bench.engine.served == 1
    await bench.end()


async def test_a_look_leaves_a_call_alone_that_awaits_news_of_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_execution, "LOOK_S", 0.0)
    bench = OnlineBench()
    bench.engine.go.set()
    bench.known.gone, bench.known.alive = True, False
    bench.begin(call())
    watching = asyncio.create_task(bench.execution.watch())
    await bench.settle()  # many looks
    bench.known.gone, bench.known.alive = False, True
    await bench.end()
    watching.cancel()
    assert bench.log.statuses() == [200]


async def test_a_call_that_is_cut_while_its_caller_is_heard_again_ends_as_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "_NEWS_LOOK_S", 0.0)
    bench = OnlineBench()
    bench.known.gone, bench.known.alive = True, False
    bench.begin(call())
    for _ in range(3):
        await asyncio.sleep(0)  # from here on each turn has a step of the call
    bench.known.gone, bench.known.alive = False, True
    bench.news(aborted=[UUID(int=1)])
    await bench.end()
    assert (bench.engine.running, bench.finished, bench.log.statuses()) == (0, 1, [])


async def test_a_task_that_somebody_cancelled_fails_the_process() -> None:
    bench = OnlineBench()
    bench.begin(call())
    await bench.settle()
    (task,) = (t for t in asyncio.all_tasks() if t is not asyncio.current_task())
    task.cancel()
    with pytest.raises(TaskCancelledError):
        await bench.end()
    assert bench.finished == 0


async def test_what_the_end_of_the_process_cancels_is_no_failure() -> None:
    bench = OnlineBench()
    bench.begin(call())
    await bench.settle()
    bench.tasks.cancel_all()
    await bench.end()
    assert bench.finished == 0


@pytest.mark.parametrize("durable", [False, True])
async def test_a_durable_answer_is_told_once_its_outcome_is_on_the_log(durable: bool) -> None:
    bench = OnlineBench()
    bench.log.keeps_waiting = "outcomes"
    bench.engine.go.set()
    bench.begin(call(durable=durable))
    await bench.settle()
    assert bench.log.pieces() == [b"1", b"2"]  # these wait for nothing
    assert bench.log.statuses() == ([] if durable else [200])
    assert bench.finished == 0
    bench.log.acknowledge()
    await bench.end()
    assert (bench.log.statuses(), bench.finished) == ([200], 1)


async def test_the_outcome_of_a_durable_stream_holds_its_pieces() -> None:
    bench = OnlineBench()
    bench.engine.go.set()
    bench.begin(call(durable=True))
    await bench.end()
    assert [o.body for o in bench.log.outcomes] == [b"[1,2]"]


async def test_a_pool_that_is_away_has_its_calls_put_back_to_run_later() -> None:
    bench = OnlineBench()
    bench.engine.away = True
    bench.begin(call())
    await bench.end()
    (chunk,) = bench.log.put_back
    assert (chunk.job, chunk.redelivered) == (call().job, False)
    assert (bench.finished, bench.log.statuses()) == (1, [])
    bench.engine.away = False
    bench.engine.go.set()
    bench.begin(chunk)
    await bench.end()
    assert bench.log.statuses() == [200]


async def test_a_drain_puts_back_what_has_said_nothing_and_ends_begun_streams() -> None:
    bench = OnlineBench()
    bench.begin(call(1), call(2, stream=False))
    await bench.settle()
    bench.execution.drain()
    bench.begin(call(3), may_have_run=True)
    await bench.settle()
    assert [(c.job.job_id.int, c.redelivered) for c in bench.log.put_back] == [(3, True)]
    bench.execution.hand_back()
    await bench.end()
    assert [c.job.job_id.int for c in bench.log.put_back] == [3, 2]
    (end,) = [r.end for r in bench.log.replies if r.end is not None]
    assert (end.status_code, end.input_tokens, end.output_tokens) == (503, 3, 7)
    assert [(bill.outcome, bill.output_tokens) for bill in bench.log.bills] == [(Outcome.FAILED, 7)]
    assert b"stream_interrupted" in end.body
    assert bench.finished == 2


async def test_a_begun_durable_stream_ends_for_its_caller_and_runs_again() -> None:
    bench = OnlineBench()
    bench.begin(call(durable=True))
    await bench.settle()
    bench.execution.hand_back()
    await bench.end()
    assert (bench.log.statuses(), len(bench.log.put_back), bench.log.outcomes) == ([503], 1, [])


async def test_a_cancelled_durable_call_has_an_outcome() -> None:
    bench = OnlineBench()
    bench.begin(call(durable=True))
    await bench.settle()
    bench.news(aborted=[UUID(int=1)])
    await bench.end()
    assert [o.outcome for o in bench.log.outcomes] == [Outcome.CANCELLED]
    assert bench.log.statuses() == [409]


async def test_a_call_of_a_closed_job_leaves_its_end_to_the_close_record() -> None:
    bench = OnlineBench()
    bench.known.closed = True
    bench.begin(call(durable=True))
    await bench.end()
    assert (bench.engine.served, bench.log.outcomes, bench.log.statuses()) == (0, [], [409])


async def test_a_piece_that_fits_no_record_interrupts_its_stream() -> None:
    bench = OnlineBench()
    bench.engine.piece = b"x" * (PIECE_BYTES_MAX + 1)
    bench.engine.go.set()
    bench.begin(call())
    await bench.end()
    assert (bench.log.pieces(), bench.log.statuses()) == ([], [502])
    assert bench.finished == 1
