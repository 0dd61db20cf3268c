"""Goal: online calls share a replica with bulk, and each ends with its caller's wish."""

import time
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from core.outcomes import Outcome
from gpu_consumers.online import call_execution
from gpu_consumers.online.call_execution import ABORT_CHECK_S
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX
from gpu_consumers.payloads.fingerprints import fingerprint_writer
from gpu_consumers.quarantine import rerun_permission
from tests.integration.gpu_consumers.bench import Bench, batch, items, job
from tests.integration.gpu_consumers.caller import Caller, call_of
from topics.records.catalogue import CAPACITY, REQUESTS_INTERACTIVE
from topics.records.records import Batch, Capacity, Chunk
from topics.settings import KafkaSettings
from topics.tail_readers.known_callers import SILENCE_S_MAX

STAMP = fingerprint_writer("/v1/chat/completions", "m", "1")
PIECES = [STAMP(b'{"n":%d}' % number) for number in range(5)]


def start(bench: Bench) -> None:
    """Return when both lanes own their partitions: what comes from now on is new."""
    bench.start()
    ready: set[str] = set()

    def both(found: list[object]) -> bool:
        ready.update(c.job_class for c in cast(list[Capacity], found) if len(c.partitions) == 8)
        return ready == {"bulk", "interactive"}

    bench.read(CAPACITY, both)


def send(bench: Bench, call: Batch) -> None:
    bench.send(call, job_class="interactive")


def await_running(bench: Bench, count: int, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while bench.engine.running != count:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_a_stream_and_a_whole_answer_reach_their_caller(online: Bench, caller: Caller) -> None:
    start(online)
    send(online, call_of(1, stream=True))
    send(online, call_of(2))
    caller.await_replies(lambda c: c.end(1) and c.end(2))

    assert caller.pieces(1) == PIECES
    streamed, whole = caller.end(1), caller.end(2)
    assert streamed is not None
    assert whole is not None
    assert (streamed.status_code, streamed.body, streamed.output_tokens) == (200, b"", 5)
    assert (whole.status_code, whole.body) == (200, STAMP(b'{"a":1}'))
    assert caller.questions() == []
    bills = online.outcomes(2, bills=True)
    assert [(bill.outcome, bill.input_tokens, bill.output_tokens, bill.body) for bill in bills] == [
        (Outcome.SUCCEEDED, 3, 5, b"")
    ] * 2
    online.await_lag(0, "interactive")


def test_bulk_goes_on_while_a_stream_runs_and_both_share_the_engine(
    online: Bench, caller: Caller
) -> None:
    start(online)
    online.call(online.engine.hold.clear)
    send(online, call_of(1, stream=True))
    caller.await_replies(lambda c: c.pieces(1) == PIECES[:1])
    online.call(online.engine.hold.set)
    online.send(batch(Chunk(job(7), items(0, 3))))
    assert len(online.outcomes(3)) == 3
    caller.await_replies(lambda c: c.end(1))
    assert online.in_flight() == 0


def test_an_aborted_call_frees_its_place_at_once(
    online: Bench, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The news alone do that: nothing looks for it in the time of this test."""
    monkeypatch.setattr(call_execution, "ABORT_CHECK_S", 3600.0)
    start(online)
    online.call(online.engine.hold.clear)
    send(online, call_of(1, stream=True))
    await_running(online, 1)
    caller.say(aborted=[UUID(int=1)])
    await_running(online, 0)
    (bill,) = online.outcomes(1, bills=True)
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.CANCELLED, 3, 1)
    online.await_lag(0, "interactive")


def test_calls_of_a_silent_caller_are_aborted(online: Bench, caller: Caller) -> None:
    start(online)
    online.call(online.engine.hold.clear)
    for number in (1, 2):
        send(online, call_of(number, stream=number == 1))
    send(online, call_of(3, durable=True))
    await_running(online, 3)
    caller.fall_silent()
    await_running(online, 1, 4 * (SILENCE_S_MAX + ABORT_CHECK_S))
    online.call(online.engine.hold.set)
    assert [o.outcome for o in online.outcomes(1)] == [Outcome.SUCCEEDED]
    online.await_lag(0, "interactive")


def test_an_expired_call_is_answered_and_not_executed(online: Bench, caller: Caller) -> None:
    start(online)
    online.call(online.engine.hold.clear)
    send(online, call_of(2))
    await_running(online, 1)
    caller.say(aborted=[UUID(int=2)])
    await_running(online, 0)  # from here on the caller's clock is known
    send(online, call_of(1, timeout_s=-1))
    caller.await_replies(lambda c: c.end(1))
    end = caller.end(1)
    assert end is not None
    assert end.status_code == 504
    assert b'"deadline_exceeded"' in end.body
    assert end.execution_s == 0


def test_an_overdue_call_is_answered_and_one_in_time_says_that_it_has_begun(
    online: Bench, caller: Caller
) -> None:
    start(online)
    online.call(online.engine.hold.clear)
    send(online, call_of(2, queue_timeout_s=60))
    caller.await_replies(lambda c: c.heard_of(2))
    (begun,) = caller.heard_of(2)
    assert (begun.pieces, begun.end) == ([], None)
    caller.say(aborted=[UUID(int=2)])
    await_running(online, 0)  # from here on the caller's clock is known
    send(online, call_of(1, queue_timeout_s=-1))
    caller.await_replies(lambda c: c.end(1))
    end = caller.end(1)
    assert end is not None
    assert (end.status_code, end.execution_s) == (504, 0)
    assert b'"queue_timeout"' in end.body


def test_a_durable_answer_goes_to_its_caller_and_to_its_judge(
    online: Bench, caller: Caller
) -> None:
    start(online)
    online.engine.answer = b'"%s"' % (b"x" * ANSWER_BYTES_MAX)
    send(online, call_of(1, durable=True))
    caller.await_replies(lambda c: c.end(1))
    (outcome,) = online.outcomes(1)
    end = caller.end(1)
    assert end is not None
    assert end.body_key is not None
    assert outcome.body_key not in (None, end.body_key)
    assert b"".join(online.objects.read(end.body_key)) == online.engine.answer
    online.await_lag(0, "interactive")


def test_an_old_call_runs_when_its_caller_permits_it_and_else_never(
    online: Bench, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerun_permission, "PERMISSION_S_MAX", 1.0)
    for number in (1, 2):
        send(online, call_of(number, stream=True))
    send(online, call_of(3, durable=True))
    online.start()
    caller.await_replies(lambda c: len(set(c.questions())) == 2 and c.end(3))
    assert {q.int for q in caller.questions()} == {1, 2}
    caller.say(permitted=[UUID(int=2)])
    caller.await_replies(lambda c: c.end(1) and c.end(2))
    online.await_lag(0, "interactive")
    assert (caller.pieces(1), caller.pieces(2)) == ([], PIECES)
    assert [q.int for q in caller.questions()].count(1) == rerun_permission.REQUESTS_MAX
    end = caller.end(1)
    assert end is not None
    assert end.status_code == 502


def test_running_calls_stay_when_a_second_replica_takes_their_partition(
    online: Bench, caller: Caller, kafka: KafkaSettings, tmp_path: Path
) -> None:
    start(online)
    online.call(online.engine.hold.clear)
    for number in range(1, 9):
        online.send(call_of(number, stream=number % 2 == 0), number - 1, "interactive")
    await_running(online, 8)
    second = Bench(kafka, tmp_path, "both")
    try:
        second.start()

        def shares(found: list[object]) -> bool:
            told = cast(list[Capacity], found)
            places = {c.replica_id: c.partitions for c in told if c.job_class == "interactive"}
            return sorted(map(len, places.values())) == [4, 4]

        online.read(CAPACITY, shares)
        online.call(online.engine.hold.set)
        caller.await_replies(lambda c: all(c.end(number) for number in range(1, 9)))
        online.await_lag(0, "interactive")
        assert caller.questions() == []
        assert second.engine.bodies == []
    finally:
        second.close()


def test_a_leaving_replica_puts_back_what_said_nothing(online: Bench, caller: Caller) -> None:
    start(online)
    online.call(online.engine.hold.clear)
    send(online, call_of(1, stream=True))
    send(online, call_of(2))
    caller.await_replies(lambda c: c.pieces(1))
    await_running(online, 2)
    online.stop.set()
    chunks = cast(list[Chunk], online.read(REQUESTS_INTERACTIVE, bool))
    assert [(c.job.job_id.int, c.redelivered) for c in chunks] == [(2, False)]
    caller.await_replies(lambda c: c.end(1))
    end = caller.end(1)
    assert end is not None
    assert (end.status_code, end.output_tokens) == (503, 1)
    online.join()
    assert online.lag("interactive") == 0


def test_a_pool_that_is_away_closes_the_credit_of_both_classes(
    online: Bench, caller: Caller
) -> None:
    start(online)
    online.engine.away = True
    send(online, call_of(1))
    closed: set[str] = set()

    def both_closed(found: list[object]) -> bool:
        told = [c for c in cast(list[Capacity], found) if c.partitions]
        closed.update(c.job_class for c in told if not c.available)
        return closed == {"bulk", "interactive"}

    online.read(CAPACITY, both_closed)
    online.engine.away = False
    (chunk,) = cast(list[Chunk], online.read(REQUESTS_INTERACTIVE, bool))
    send(online, batch(chunk))
    caller.await_replies(lambda c: c.end(1))
