"""Goal: a replica makes every item's end durable before it commits, whatever its pool does."""

import time
from uuid import UUID, uuid4

from core.errors import EngineDeadError
from core.outcomes import Outcome
from core.states import CloseReason
from tests.integration.gpu_consumers.bench import BATCHES, POOL, Bench, batch, items, job
from topics.records.catalogue import CAPACITY, CONTROL, DEAD_LETTERS, DEMAND, REQUESTS_BULK
from topics.records.codec import decode, encode, kind_headers
from topics.records.records import Batch, Capacity, Chunk, DeadLetter, Demand, Item, JobControl
from topics.tail_readers.topic_tail_reader import TopicTailReader


def test_outcomes_of_two_jobs_are_durable_and_then_committed(bench: Bench) -> None:
    bench.start()
    bench.send(batch(Chunk(job(1), items(0, 3)), Chunk(job(2), items(7, 2, b"bad"))))
    outcomes = bench.outcomes(5)
    assert [(o.index, o.outcome, o.status_code) for o in outcomes if o.index < 5] == [
        (n, Outcome.SUCCEEDED, 200) for n in range(3)
    ]
    assert {(o.custom_id, o.outcome) for o in outcomes if o.index >= 7} == {
        ("c7", Outcome.FAILED),
        ("c8", Outcome.FAILED),
    }
    bench.await_lag(0)


def test_a_pool_that_is_away_gets_its_items_back_uncharged(bench: Bench) -> None:
    bench.start()
    bench.engine.unavailable = True
    bench.send(batch(Chunk(job(), items(0, 10))))
    done = bench.outcomes(5)
    chunks = bench.read(REQUESTS_BULK, bool)
    back = [i for chunk in chunks for i in chunk.items]  # type: ignore[attr-defined]
    assert sorted(o.index for o in done) + [i.index for i in back] == list(range(10))
    assert {i.attempt for i in back} == {1}
    bench.await_lag(0)
    last = bench.read(CAPACITY, lambda found: any(not c.available for c in found))  # type: ignore[attr-defined]
    assert last


def test_a_dead_engine_ends_the_process_with_its_offset_uncommitted(bench: Bench) -> None:
    bench.start()
    bench.engine.dead = True
    bench.send(batch(Chunk(job(), items(0, 2))))
    bench.join()
    assert isinstance(bench.failure, EngineDeadError)
    assert bench.lag() == 1


def test_stopping_hands_back_what_does_not_finish(bench: Bench) -> None:
    bench.start()
    bench.call(bench.engine.hold.clear)
    bench.send(batch(Chunk(job(), items(0, 4))))
    bench.read(CAPACITY, bool)
    assert bench.engine.asked.wait(20)
    bench.stop.set()
    bench.join()
    assert bench.failure is None
    chunks = bench.read(REQUESTS_BULK, bool)
    assert [i.index for chunk in chunks for i in chunk.items] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert bench.lag() == 0


def test_items_of_a_closed_job_are_not_executed(bench: Bench) -> None:
    control = JobControl(job_id=UUID(int=1), version=1, closed=CloseReason.CANCELLED)
    bench.producer.send(
        CONTROL.name,
        encode(control),
        partition=0,
        key=UUID(int=1).bytes,
        headers=kind_headers(JobControl),
    )
    bench.producer.flush(10)
    bench.start()
    bench.send(batch(Chunk(job(1), items(0, 3, b"no")), Chunk(job(2), items(3, 1, b"yes"))))
    assert [o.index for o in bench.outcomes(1)] == [3]
    bench.await_lag(0)
    assert bench.engine.bodies == [b"yes"]


def test_an_item_by_reference_is_read_from_its_file(bench: Bench) -> None:
    line = b'{"custom_id":"x","body":{"big":1}}\n'
    with bench.objects.begin_upload("files/big") as upload:
        upload.write(b"first\n" + line)
        upload.complete()
    bench.start()
    by_reference = Item(0, "x", b"", 1, 1, 6, len(line))
    missing = Item(1, "y", b"", 1, 1, 6, len(line))
    bench.send(
        batch(
            Chunk(job(1, "files/big"), [by_reference]),
            Chunk(job(2, "files/gone"), [missing]),
        )
    )
    outcomes = {o.index: o for o in bench.outcomes(2)}
    assert bench.engine.bodies == [b'{"big":1}']
    assert outcomes[1].outcome is Outcome.FAILED


def test_an_unreadable_batch_is_kept_as_a_dead_letter(bench: Bench) -> None:
    bench.start()
    bench.producer.send(BATCHES.name, b"\xc1not a batch", partition=3, headers=kind_headers(Batch))
    bench.producer.flush(10)
    (letter,) = bench.read(DEAD_LETTERS, bool)
    assert isinstance(letter, DeadLetter)
    assert (letter.partition, letter.code, letter.value) == (
        3,
        "record_unreadable",
        b"\xc1not a batch",
    )
    bench.await_lag(0)


def test_grants_reach_a_batcher_and_grow_with_what_it_sent(bench: Bench) -> None:
    bench.start()
    said = Demand("b", "bulk", {POOL: 50})
    deadline = time.monotonic() + 20
    tail = TopicTailReader(bench.kafka, CAPACITY, client_id="grants")
    granted: list[Capacity] = []
    sent = False
    while time.monotonic() < deadline:
        bench.producer.send(DEMAND.name, encode(said), partition=0, headers=kind_headers(Demand))
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
            bench.send(spending, first.partitions[0])
            sent = True
        if sent and granted[-1].granted.get("b", 0) >= first.granted["b"] + 5:
            break
    assert granted[-1].granted["b"] >= first.granted["b"] + 5
    assert granted[-1].epoch == first.epoch
    tail.close()
