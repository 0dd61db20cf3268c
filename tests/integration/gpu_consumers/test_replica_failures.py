"""Goal: what goes wrong around a batch loses no item, counts none twice, and stops no process."""

import time
from typing import cast

import pytest

from core.errors import EngineDeadError, SchemaTooNewError
from core.outcomes import Outcome
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX
from tests.integration.gpu_consumers.bench import POOL, Bench, batch, items, job
from topics.records.catalogue import CAPACITY, CONTROL, DEMAND, REQUESTS_BULK, Topic
from topics.records.codec import kind_headers
from topics.records.records import Capacity, Chunk, Item


def handed_back(bench: Bench, count: int) -> list[int]:
    """Return the indexes on the requests topic once there are `count`."""

    def indexes(found: list[object]) -> list[int]:
        return [item.index for chunk in found for item in cast(Chunk, chunk).items]

    return indexes(bench.read(REQUESTS_BULK, lambda found: len(indexes(found)) >= count))


def test_a_dead_engine_ends_the_process_while_other_batches_run(bench: Bench) -> None:
    bench.start()
    bench.call(bench.engine.hold.clear)
    for partition in range(3):
        bench.send(batch(Chunk(job(), items(partition, 1))), partition)
    bench.read(CAPACITY, bool)
    assert bench.engine.asked.wait(20)
    bench.send(batch(Chunk(job(), items(9, 1, b"die"))), 3)
    bench.join()
    assert isinstance(bench.failure, EngineDeadError)
    assert bench.lag() == 4


@pytest.mark.parametrize("topic", [CONTROL, DEMAND], ids=lambda topic: topic.name)
def test_an_idle_replica_ends_when_it_cannot_read_the_news_any_more(
    bench: Bench, topic: Topic
) -> None:
    bench.start()
    newer_control = [kind_headers(topic.records[0])[0], ("schema", b"99")]
    deadline = time.monotonic() + 20
    while not bench.left.wait(0.2):  # demand is read from some later moment on, and repeated
        assert time.monotonic() < deadline
        bench.producer.send(topic.name, b"", partition=0, key=b"k", headers=newer_control)
    bench.join()
    assert isinstance(bench.failure, SchemaTooNewError)


def test_large_bodies_wait_for_their_object_store(bench: Bench) -> None:
    line = b'{"custom_id":"x","body":{"big":1}}\n'
    with bench.objects.begin_upload("files/big") as upload:
        upload.write(line)
        upload.complete()
    bench.start()
    bench.objects.is_away = True
    by_reference = Item(0, "x", b"", 1, 1, 0, len(line))
    bench.send(batch(Chunk(job(1, "files/big"), [by_reference, *items(1, 2)])))
    assert sorted(o.index for o in bench.outcomes(2)) == [1, 2]
    assert handed_back(bench, 1) == [0]
    bench.read(CAPACITY, lambda found: any(not cast(Capacity, c).available for c in found))
    bench.await_lag(0)


def test_an_answer_that_cannot_be_stored_goes_back_and_the_others_are_kept(bench: Bench) -> None:
    bench.start()
    bench.objects.is_away = True
    bench.engine.answer = b'"%s"' % (b"x" * ANSWER_BYTES_MAX)
    bench.send(batch(Chunk(job(), items(0, 3))))
    assert handed_back(bench, 3) == [0, 1, 2]
    bench.await_lag(0)
    bench.objects.is_away = False
    bench.send(batch(Chunk(job(), items(0, 1))))
    (stored,) = bench.outcomes(1)
    assert stored.body == b""
    assert stored.body_key is not None
    assert b"".join(bench.objects.read(stored.body_key)) == bench.engine.answer


def test_stopping_commits_no_batch_whose_answers_are_not_published(bench: Bench) -> None:
    bench.start()
    bench.objects.gate.clear()
    bench.engine.answer = b'"%s"' % (b"x" * ANSWER_BYTES_MAX)
    bench.send(batch(Chunk(job(), items(0, 1))))
    assert bench.engine.asked.wait(20)
    bench.stop.set()
    assert bench.left.wait(20)
    bench.objects.gate.set()
    bench.join()
    assert bench.lag() == 1


def test_an_input_file_that_changed_fails_its_item_alone(bench: Bench) -> None:
    with bench.objects.begin_upload("files/cut") as upload:
        upload.write(b'{"custom_id":')
        upload.complete()
    bench.start()
    bench.send(batch(Chunk(job(1, "files/cut"), [Item(0, "x", b"", 1, 1, 0, 40), *items(1, 1)])))
    outcomes = {o.index: o.outcome for o in bench.outcomes(2)}
    assert outcomes == {0: Outcome.FAILED, 1: Outcome.SUCCEEDED}


def test_items_that_an_engine_forgets_fail_and_repeats_count_once(bench: Bench) -> None:
    bench.start()
    bench.engine.silent_count = 2
    bench.send(batch(Chunk(job(), items(0, 5))))
    outcomes = {o.index: (o.outcome, o.status_code) for o in bench.outcomes(5)}
    assert outcomes == dict.fromkeys(range(2), (Outcome.FAILED, 500)) | dict.fromkeys(
        range(2, 5), (Outcome.SUCCEEDED, 200)
    )
    bench.await_lag(0)
    assert bench.in_flight() == 0


def test_a_batch_that_ends_while_the_replica_drains_opens_no_credit(bench: Bench) -> None:
    bench.start()
    bench.call(bench.engine.hold.clear)
    bench.send(batch(Chunk(job(), items(0, 2))))
    bench.read(CAPACITY, bool)
    assert bench.engine.asked.wait(20)
    bench.stop.set()

    def said_no(found: list[object]) -> bool:
        return any(not c.available for c in of_this_pool(found) if c.partitions)

    def of_this_pool(found: list[object]) -> list[Capacity]:
        return [c for c in cast(list[Capacity], found) if c.pool == POOL]

    bench.read(CAPACITY, said_no)
    bench.call(bench.engine.hold.set)
    bench.join()
    assert sorted(o.index for o in bench.outcomes(2)) == [0, 1]
    assert bench.lag() == 0
    deadline = time.monotonic() + 10
    states: list[bool] = []
    while not states and time.monotonic() < deadline:
        found = of_this_pool(bench.read(CAPACITY, said_no))
        states = [c.available for c in found if c.partitions]
    first_no = states.index(False)
    assert not any(states[first_no:])
