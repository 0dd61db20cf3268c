"""Goal: failures around a batch lose no item, count none twice, and stop no process."""

import time
from typing import cast

import pytest

from core.errors import SchemaTooNewError
from core.outcomes import Outcome
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX
from tests.integration.gpu_consumers.threaded_replica import (
    POOL,
    ThreadedReplica,
    batch,
    items,
    job,
)
from topics.records.catalogue import CAPACITY, CONTROL, DEMAND, REQUESTS_BULK, Topic
from topics.records.codec import kind_headers
from topics.records.records import Capacity, Chunk, Item


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
