"""Goal: online calls are dispatched while their caller lives, once or marked as redelivered."""

import time
from collections import Counter
from collections.abc import Iterable

from tests.integration.batcher.harness import Bench, Caller, Replica, call_ref
from tests.support.until import until
from topics.records.records import Chunk, JobRef

CALL_S = 10.0
"""Time to the deadline of calls: all of them are buffered before."""


def parts(replica: Replica) -> list[Chunk]:
    return [part for batch in list(replica.batches) for part in batch.parts]


def numbers(chunks: Iterable[Chunk]) -> list[int]:
    return sorted(part.job.job_id.int for part in chunks)


def calls_of(caller: Caller, first: int, count: int) -> list[JobRef]:
    return [call_ref(number, caller.caller_id) for number in range(first, first + count)]


def test_calls_without_a_live_caller_are_dropped(bench: Bench) -> None:
    caller = bench.caller  # its heartbeats begin before the batcher
    replica = bench.start_replica(job_class="interactive", window=0)
    batcher = bench.start_batcher(job_class="interactive")
    batcher.ready()
    kept, aborted = call_ref(1, caller.caller_id), call_ref(2, caller.caller_id)
    expired = call_ref(3, caller.caller_id, deadline_s=time.time() + CALL_S)
    orphan, durable = call_ref(4, "gone"), call_ref(5, "gone", durable=True)
    # Of the one that has a row a replica has to say that it came too late.
    begin_by_s = time.time() + CALL_S
    overdue, late = (
        call_ref(6 + is_late, caller.caller_id, durable=is_late, begin_by_s=begin_by_s)
        for is_late in (False, True)
    )
    gone = Caller(bench.kafka, "gone")
    try:
        bench.calls.send_calls(kept, aborted, expired, orphan, durable, overdue, late)
        until(lambda: max(replica.waiting.values(), default=0) == 7)
    finally:
        gone.stop()
    caller.abort(aborted)
    # Nothing can be dispatched, so calls that are not buffered any more were dropped.
    until(lambda: max(replica.waiting.values()) == 3)
    replica.window = 100
    until(lambda: len(parts(replica)) == 3)
    until(lambda: bench.lag("interactive") == 0)
    assert batcher.stop() == 0
    assert numbers(parts(replica)) == [1, 5, 7]


def test_rebalances_and_kills_lose_no_call(bench: Bench) -> None:
    caller = bench.caller  # its heartbeats begin before the batcher
    replica = bench.start_replica(job_class="interactive", window=50, items_per_s=500)
    session = {"MILLRACE_KAFKA_SESSION_TIMEOUT_S": 2}  # the successors wait for it
    first = bench.start_batcher(job_class="interactive", **session)
    first.ready()
    bench.calls.send_calls(*calls_of(caller, 1, 500))
    until(lambda: len(parts(replica)) >= 100)
    first.kill()
    second, third = (bench.start_batcher(job_class="interactive", **session) for _ in range(2))
    second.ready()
    third.ready()
    bench.calls.send_calls(*calls_of(caller, 501, 500))
    until(lambda: len(parts(replica)) >= 700)
    assert second.stop() == 0
    until(lambda: len({p.job.job_id for p in parts(replica)}) == 1000)
    until(lambda: bench.lag("interactive") == 0)
    assert third.stop() == 0
    counts = Counter(part.job.job_id for part in parts(replica))
    again = [job_id for job_id, count in counts.items() if count > 1]
    came_again = {p.job.job_id for p in parts(replica) if p.redelivered}
    assert set(again) <= came_again, "a second execution must be marked"
