"""Goal: a replica publishes the outcome of every item before it commits, despite failures."""

import time
from typing import cast
from uuid import UUID, uuid4

import pytest

from core.errors import SchemaTooNewError
from core.outcomes import Outcome
from core.states import CloseReason
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX
from tests.integration.gpu_consumers.threaded_replica import (
    POOL,
    ThreadedReplica,
    batch,
    items,
    job,
)
from topics.records.catalogue import CAPACITY, CONTROL, DEMAND, REQUESTS_BULK, Topic
from topics.records.codec import decode, encode, kind_headers
from topics.records.records import Batch, Capacity, Chunk, Demand, Item, JobControl
from topics.tail_readers.topic_tail_reader import TopicTailReader


def test_outcomes_of_two_jobs_are_published_and_committed(replica: ThreadedReplica) -> None:
    replica.start()
    replica.send(batch(Chunk(job(1), items(0, 3)), Chunk(job(2), items(7, 2, b"bad"))))
    outcomes = replica.outcomes(5)
    assert [(o.index, o.outcome, o.status_code) for o in outcomes if o.index < 5] == [
        (n, Outcome.SUCCEEDED, 200) for n in range(3)
    ]
    assert {(o.custom_id, o.outcome) for o in outcomes if o.index >= 7} == {
        ("c7", Outcome.FAILED),
        ("c8", Outcome.FAILED),
    }
    replica.await_lag(0)


def test_a_stop_requeues_unfinished_items(replica: ThreadedReplica) -> None:
    replica.start()
    replica.hold(batch(Chunk(job(), items(0, 4))))
    replica.stop.set()
    replica.join()
    assert replica.failure is None
    chunks = replica.read(REQUESTS_BULK, bool)
    assert [i.index for chunk in chunks for i in chunk.items] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert replica.lag() == 0


def test_items_of_a_closed_job_are_not_executed(replica: ThreadedReplica) -> None:
    control = JobControl(job_id=UUID(int=1), version=1, closed=CloseReason.CANCELLED)
    replica.producer.send(
        CONTROL.name,
        encode(control),
        partition=0,
        key=UUID(int=1).bytes,
        headers=kind_headers(JobControl),
    )
    replica.producer.flush(40)
    replica.start()
    replica.send(batch(Chunk(job(1), items(0, 3, b"no")), Chunk(job(2), items(3, 1, b"yes"))))
    assert [o.index for o in replica.outcomes(1)] == [3]
    replica.await_lag(0)
    assert replica.engine.bodies == [b"yes"]


def test_a_large_item_is_read_from_its_file_and_fails_alone_without_it(
    replica: ThreadedReplica,
) -> None:
    line = b'{"custom_id":"x","body":{"big":1}}\n'
    replica.store("files/big", b"first\n" + line)
    replica.store("files/cut", line[:13])
    replica.start()
    stored = Item(0, "x", b"", 1, 1, 6, len(line))
    missing = Item(1, "y", b"", 1, 1, 6, len(line))
    cut = Item(2, "z", b"", 1, 1, 0, len(line))
    replica.send(
        batch(
            Chunk(job(1, "files/big"), [stored]),
            Chunk(job(2, "files/gone"), [missing]),
            Chunk(job(3, "files/cut"), [cut, *items(3, 1)]),
        )
    )
    outcomes = {o.index: o.outcome is Outcome.SUCCEEDED for o in replica.outcomes(4)}
    assert set(replica.engine.bodies) == {b"{}", b'{"big":1}'}
    assert outcomes == {0: True, 1: False, 2: False, 3: True}


def test_grants_grow_with_the_items_that_end(replica: ThreadedReplica) -> None:
    replica.start()
    demand = Demand("b", "bulk", {POOL: 50})
    deadline = time.monotonic() + 40
    tail = TopicTailReader(replica.kafka, CAPACITY, client_id="grants")
    granted: list[Capacity] = []
    sent = False
    while time.monotonic() < deadline:
        replica.producer.send(
            DEMAND.name, encode(demand), partition=0, headers=kind_headers(Demand)
        )
        granted += [decode(Capacity, r.value, r.headers) for r in tail.poll(0.2)]
        ready = [c for c in granted if c.granted.get("b") and len(c.partitions) == 8]
        if ready and not sent:
            first = ready[-1]
            spending = Batch(
                batch_id=uuid4(),
                batcher_id="b",
                parts=[Chunk(job(), items(0, 5))],
                replica_id=first.replica_id,
                epoch=first.epoch,
            )
            replica.send(spending, first.partitions[0])
            sent = True
        if sent and granted[-1].granted.get("b", 0) >= first.granted["b"] + 5:
            break
    assert granted[-1].granted["b"] >= first.granted["b"] + 5
    assert granted[-1].epoch == first.epoch
    tail.close()


def requeued_indexes(replica: ThreadedReplica, count: int) -> list[int]:
    """Wait for `count` items on the topic of requests and return their indexes."""

    def indexes(found: list[object]) -> list[int]:
        return [item.index for chunk in found for item in cast(Chunk, chunk).items]

    return indexes(replica.read(REQUESTS_BULK, lambda found: len(indexes(found)) >= count))


@pytest.mark.parametrize("topic", [CONTROL, DEMAND], ids=lambda topic: topic.name)
def test_an_idle_replica_ends_when_a_tail_reader_fails(
    replica: ThreadedReplica, topic: Topic
) -> None:
    replica.start()
    newer_control = [kind_headers(topic.records[0])[0], ("schema", b"99")]
    deadline = time.monotonic() + 40
    while not replica.left.wait(0.2):  # the reader of demand starts at some later moment
        assert time.monotonic() < deadline
        replica.producer.send(topic.name, b"", partition=0, key=b"k", headers=newer_control)
    replica.join()
    assert isinstance(replica.failure, SchemaTooNewError)


def test_items_in_an_unavailable_object_store_are_requeued(
    replica: ThreadedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_consumers.bulk.batch_execution.STORE_WAIT_S", 0.2)
    line = b'{"custom_id":"x","body":{"big":1}}\n'
    replica.store("files/big", line)
    replica.start()
    replica.objects.is_away = True
    stored = Item(0, "x", b"", 1, 1, 0, len(line))
    replica.send(batch(Chunk(job(1, "files/big"), [stored, *items(1, 2)])))
    assert sorted(o.index for o in replica.outcomes(2)) == [1, 2]
    assert requeued_indexes(replica, 1) == [0]
    replica.await_lag(0)


def test_items_whose_answer_cannot_be_stored_are_requeued(replica: ThreadedReplica) -> None:
    replica.start()
    replica.objects.is_away = True
    replica.engine.answer = b'"%s"' % (b"x" * ANSWER_BYTES_MAX)
    replica.send(batch(Chunk(job(), items(0, 3))))
    assert requeued_indexes(replica, 3) == [0, 1, 2]
    replica.await_lag(0)
    replica.objects.is_away = False
    replica.send(batch(Chunk(job(), items(0, 1))))
    (stored,) = replica.outcomes(1)
    assert stored.body == b""
    assert stored.body_key is not None
    assert b"".join(replica.objects.read(stored.body_key)) == replica.engine.answer


def test_a_stop_does_not_commit_an_unpublished_batch(replica: ThreadedReplica) -> None:
    replica.start()
    replica.objects.gate.clear()
    replica.engine.answer = b'"%s"' % (b"x" * ANSWER_BYTES_MAX)
    replica.send(batch(Chunk(job(), items(0, 1))))
    assert replica.engine.called.wait(40)
    replica.stop.set()
    assert replica.left.wait(40)
    replica.objects.gate.set()
    replica.join()
    assert replica.lag() == 1


def test_items_without_an_answer_fail_and_repeated_answers_count_once(
    replica: ThreadedReplica,
) -> None:
    replica.start()
    replica.engine.silent_count = 2
    replica.send(batch(Chunk(job(), items(0, 5))))
    outcomes = {o.index: (o.outcome, o.status_code) for o in replica.outcomes(5)}
    assert outcomes == dict.fromkeys(range(2), (Outcome.FAILED, 500)) | dict.fromkeys(
        range(2, 5), (Outcome.SUCCEEDED, 200)
    )
    replica.await_lag(0)
    assert replica.in_flight() == 0


def test_a_batch_that_ends_during_the_drain_restores_no_credit(replica: ThreadedReplica) -> None:
    replica.start()
    replica.hold(batch(Chunk(job(), items(0, 2))))
    replica.stop.set()

    def is_withdrawn(found: list[object]) -> bool:
        return any(not c.available for c in of_this_pool(found) if c.partitions)

    def of_this_pool(found: list[object]) -> list[Capacity]:
        return [c for c in cast(list[Capacity], found) if c.pool == POOL]

    replica.read(CAPACITY, is_withdrawn)
    replica.call(replica.engine.gate.set)
    replica.join()
    assert sorted(o.index for o in replica.outcomes(2)) == [0, 1]
    assert replica.lag() == 0
    deadline = time.monotonic() + 30
    states: list[bool] = []
    while not states and time.monotonic() < deadline:
        found = of_this_pool(replica.read(CAPACITY, is_withdrawn))
        states = [c.available for c in found if c.partitions]
    first = states.index(False)
    assert not any(states[first:])
