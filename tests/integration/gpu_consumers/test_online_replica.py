"""Goal: online calls share a replica with bulk items, and follow their callers' decisions."""

from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from core.outcomes import Outcome
from gpu_consumers.online import call_execution
from gpu_consumers.online.call_execution import ABORT_CHECK_S
from gpu_consumers.online.call_server import fingerprint_writer
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX
from gpu_consumers.quarantine import redelivered_calls
from tests.integration.gpu_consumers.caller import Caller, call_of
from tests.integration.gpu_consumers.threaded_replica import ThreadedReplica, batch, items, job
from tests.support.until import until
from topics.records.catalogue import CAPACITY, REQUESTS_INTERACTIVE
from topics.records.records import Batch, Capacity, Chunk
from topics.settings import KafkaSettings
from topics.tail_readers.caller_liveness import CALLER_TIMEOUT_S

STAMP = fingerprint_writer("/v1/chat/completions", "m", "1")
PIECES = [STAMP(b'{"n":%d}' % number) for number in range(5)]


def send(replica: ThreadedReplica, call: Batch) -> None:
    replica.send(call, job_class="interactive")


def await_running(replica: ThreadedReplica, count: int, timeout_s: float = 10.0) -> None:
    until(lambda: replica.engine.running == count, timeout_s=timeout_s)


def test_a_stream_and_a_single_answer_reach_their_caller(
    online: ThreadedReplica, caller: Caller
) -> None:
    online.start()
    send(online, call_of(1, stream=True))
    send(online, call_of(2))
    streamed, single = caller.await_end(1), caller.await_end(2)

    assert caller.pieces(1) == PIECES
    assert (streamed.status_code, streamed.body, streamed.output_tokens) == (200, b"", 5)
    assert (single.status_code, single.body) == (200, STAMP(b'{"a":1}'))
    assert caller.permission_requests() == []
    bills = online.outcomes(2, bills=True)
    assert [(bill.outcome, bill.input_tokens, bill.output_tokens, bill.body) for bill in bills] == [
        (Outcome.SUCCEEDED, 3, 5, b"")
    ] * 2
    online.await_lag(0, "interactive")


def test_bulk_items_run_while_a_stream_runs(online: ThreadedReplica, caller: Caller) -> None:
    online.start()
    online.call(online.engine.gate.clear)
    send(online, call_of(1, stream=True))
    caller.await_replies(lambda c: c.pieces(1) == PIECES[:1])
    online.call(online.engine.gate.set)
    online.send(batch(Chunk(job(7), items(0, 3))))
    assert len(online.outcomes(3)) == 3
    caller.await_end(1)
    assert online.in_flight() == 0


def test_an_abort_record_frees_the_slot_of_its_call(
    online: ThreadedReplica, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a periodic check: the next one is in an hour."""
    monkeypatch.setattr(call_execution, "ABORT_CHECK_S", 3600.0)
    online.start()
    online.call(online.engine.gate.clear)
    send(online, call_of(1, stream=True))
    await_running(online, 1)
    caller.publish(aborted=[UUID(int=1)])
    await_running(online, 0)
    (bill,) = online.outcomes(1, bills=True)
    assert (bill.outcome, bill.input_tokens, bill.output_tokens) == (Outcome.CANCELLED, 3, 1)
    online.await_lag(0, "interactive")


def test_calls_of_a_silent_caller_are_aborted(online: ThreadedReplica, caller: Caller) -> None:
    online.start()
    online.call(online.engine.gate.clear)
    for number in (1, 2):
        send(online, call_of(number, stream=number == 1))
    send(online, call_of(3, durable=True))
    await_running(online, 3)
    caller.stop_heartbeats()
    await_running(online, 1, 4 * (CALLER_TIMEOUT_S + ABORT_CHECK_S))
    online.call(online.engine.gate.set)
    assert [o.outcome for o in online.outcomes(1)] == [Outcome.SUCCEEDED]
    online.await_lag(0, "interactive")


def test_a_durable_answer_reaches_its_caller_and_the_results_topic(
    online: ThreadedReplica, caller: Caller
) -> None:
    online.start()
    online.engine.answer = b'"%s"' % (b"x" * ANSWER_BYTES_MAX)
    send(online, call_of(1, durable=True))
    end = caller.await_end(1)
    (outcome,) = online.outcomes(1)
    assert end.body_key is not None
    assert outcome.body_key not in (None, end.body_key)
    assert b"".join(online.objects.read(end.body_key)) == online.engine.answer
    online.await_lag(0, "interactive")


def test_a_redelivered_call_runs_only_with_permission(
    online: ThreadedReplica, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivered_calls, "PERMISSION_S_MAX", 1.0)
    for number in (1, 2):
        send(online, call_of(number, stream=True))
    send(online, call_of(3, durable=True))
    online.start()
    caller.await_replies(lambda c: len(set(c.permission_requests())) == 2 and c.ends(3))
    assert {q.int for q in caller.permission_requests()} == {1, 2}
    caller.publish(permitted=[UUID(int=2)])
    end, _ = caller.await_end(1), caller.await_end(2)
    online.await_lag(0, "interactive")
    assert (caller.pieces(1), caller.pieces(2)) == ([], PIECES)
    assert [q.int for q in caller.permission_requests()].count(1) == redelivered_calls.REQUESTS_MAX
    assert end.status_code == 502


def test_running_calls_stay_when_their_partition_moves(
    online: ThreadedReplica, caller: Caller, kafka: KafkaSettings, tmp_path: Path
) -> None:
    online.start()
    online.call(online.engine.gate.clear)
    for number in range(1, 9):
        online.send(call_of(number, stream=number % 2 == 0), number - 1, "interactive")
    await_running(online, 8)
    second = ThreadedReplica(kafka, tmp_path, "both")
    try:
        second.start()

        def shares(found: list[object]) -> bool:
            capacities = cast(list[Capacity], found)
            partitions = {
                c.replica_id: c.partitions for c in capacities if c.job_class == "interactive"
            }
            return sorted(map(len, partitions.values())) == [4, 4]

        online.read(CAPACITY, shares)
        online.call(online.engine.gate.set)
        caller.await_replies(lambda c: all(c.ends(number) for number in range(1, 9)))
        online.await_lag(0, "interactive")
        assert caller.permission_requests() == []
        assert second.engine.bodies == []
    finally:
        second.close()


def test_an_unavailable_pool_withdraws_the_credit_of_both_classes(
    online: ThreadedReplica, caller: Caller
) -> None:
    online.start()
    online.engine.is_unavailable = True
    send(online, call_of(1))
    closed: set[str] = set()

    def both_closed(found: list[object]) -> bool:
        capacities = [c for c in cast(list[Capacity], found) if c.partitions]
        closed.update(c.job_class for c in capacities if not c.available)
        return closed == {"bulk", "interactive"}

    online.read(CAPACITY, both_closed)
    online.engine.is_unavailable = False
    (chunk,) = cast(list[Chunk], online.read(REQUESTS_INTERACTIVE, bool))
    send(online, batch(chunk))
    caller.await_end(1)
