"""Goal: records of the batcher name their items' jobs, in index order."""

import asyncio
from dataclasses import replace
from typing import cast
from uuid import UUID

import msgspec
import pytest

from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.inbound.unreadable_records import failed_outcomes, send_unreadable
from batcher.outbound import record_reader
from batcher.outbound.batch_sender import BatcherIdentity, BatchSender, batch_headers, merge_chunks
from batcher.outbound.capacity_reader import OTHER_CLASS_S, CapacityFilter, capacity_reader
from batcher.outbound.record_reader import decoded, newest_by_key
from batcher.queueing.buffered_chunk import BufferedChunk, batch_key_of, chunk_bytes
from batcher.queueing.queues import Queues
from core.limits import RECORD_BYTES_MAX
from core.outcomes import Outcome
from tests.support.clock import ManualClock
from tests.support.recording_sender import SentRecords
from tests.unit.batcher.builders import buffered, capacity, job_ref
from topics.clients.dead_letter_sender import DeadLetterSender
from topics.records.chunks import REQUEUED_HEADER, send_chunk
from topics.records.codec import NamedItems, chunk_headers, decode, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import (
    Batch,
    CallRef,
    Capacity,
    Chunk,
    DeadLetter,
    Item,
    JobRef,
    Outcomes,
)
from topics.settings import KafkaSettings


def test_single_chunk_is_not_copied() -> None:
    chunk = buffered(job_ref(), [0, 1, 2])
    (part,) = merge_chunks([chunk], now_s=2.5)
    assert part.items is chunk.items


def test_merged_chunk_reports_wait_and_redelivery() -> None:
    early, late = buffered(job_ref(), [0]), buffered(job_ref(), [1])
    early.ticket.arrived_s, late.ticket.arrived_s, late.redelivered = 10.0, 11.0, True
    alone, merged = merge_chunks([early], now_s=12.5), merge_chunks([early, late], now_s=12.5)
    assert [(part.waited_s, part.redelivered) for part in alone] == [(2.5, False)]
    assert [(part.waited_s, part.redelivered) for part in merged] == [(2.5, True)]


def test_a_part_reports_how_long_its_records_were_on_the_log() -> None:
    early, late = buffered(job_ref(), [0]), buffered(job_ref(), [1])
    early.ticket.queued_s, late.ticket.queued_s = 0.5, 0.75
    assert [part.queued_s for part in merge_chunks([early], now_s=0.0)] == [0.5]
    assert [part.queued_s for part in merge_chunks([early, late], now_s=0.0)] == [0.75]


def test_the_names_of_a_version_share_batches_and_each_item_keeps_its_own() -> None:
    digest = "a1" * 32
    chunks = [
        buffered(job_ref(model=name, model_version=digest), [index])
        for index, name in enumerate(["m", f"m@{digest[:12]}", "an-alias", "m"])
    ]
    (key,) = {batch_key_of(chunk.job) for chunk in chunks}
    parts = merge_chunks(chunks, now_s=0.0)
    assert [(part.job.model, [item.index for item in part.items]) for part in parts] == [
        ("m", [0, 3]),
        (f"m@{digest[:12]}", [1]),
        ("an-alias", [2]),
    ]
    headers = dict(batch_headers(key, chunks))
    assert headers["model"] == f"m@{digest}".encode()


def test_names_of_a_legacy_version_share_no_batch() -> None:
    """Several models may have the same text as their version."""
    assert len({batch_key_of(job_ref(model=name, model_version="1")) for name in "mn"}) == 2


def test_chunks_are_merged_by_job_and_sorted_by_index() -> None:
    parts = merge_chunks(
        [buffered(job_ref(), [4, 9]), buffered(job_ref(2), [0]), buffered(job_ref(), [1, 6])],
        now_s=0.0,
    )
    assert [(part.job.job_id.int, [item.index for item in part.items]) for part in parts] == [
        (1, [1, 4, 6, 9]),
        (2, [0]),
    ]


def test_chunk_size_includes_its_longest_custom_ids() -> None:
    items = [Item(n, chr(0x1F600) * 512, b"x" * 100, 5) for n in range(100)]
    chunk = BufferedChunk(job_ref(), items, AckTicket(("requests.bulk", 0), None, len(items), 0.0))
    assert len(encode(Chunk(chunk.job, items))) <= chunk.byte_count


LONG = "n" * 256
CALL = JobRef(
    job_id=UUID(int=2**128 - 1),
    day=2**31,
    tenant_id=UUID(int=2**128 - 1),
    model=LONG,
    model_version=LONG,
    pool="p" * 100,
    endpoint="/v1/chat/completions",
    input_key=LONG,
    deadline_s=1e9 + 0.1,
    traceparent="t" * 55,
    call=CallRef("c" * 64, 2**31, True, True, 1e9 + 0.1),
    version=2**63,
    priority=2**63,
    key_name=LONG,
)
SHORT_CALL = msgspec.structs.replace(
    CALL, model="m", model_version="1", pool="p", input_key="", key_name=""
)


@pytest.mark.parametrize("job", [CALL, SHORT_CALL])
def test_chunk_size_includes_its_job(job: JobRef) -> None:
    empty = Chunk(job, [], redelivered=True, waited_s=0.1)
    assert len(encode(empty)) <= chunk_bytes(job)


@pytest.mark.parametrize("body_bytes", [2, 500, 800, 5000])
@pytest.mark.parametrize("job", [CALL, SHORT_CALL])
def test_batch_of_calls_fits_into_a_record(job: JobRef, body_bytes: int) -> None:
    queues = Queues(items_max=10**6, bytes_max=10**9)
    for number in range(1000):
        call = msgspec.structs.replace(job, job_id=UUID(int=number))
        item = Item(2**31, "", b"x" * body_bytes, 2**31, 2**31)
        ticket = AckTicket(("requests.interactive", 0), None, 1, 0.1)
        queues.add(BufferedChunk(call, [item], ticket, redelivered=True), now_s=0.0)
    (lane,) = queues.pools[job.pool].by_fairness()
    taken = queues.pop_batch(lane, item_count_max=1000, token_count_max=2**63)
    batch = Batch(UUID(int=1), "b" * 64, merge_chunks(taken, now_s=1e6), "r" * 200, 2**63)
    headers = sum(len(name) + len(value) for name, value in batch_headers(lane.key, taken))
    assert len(encode(batch)) + headers <= RECORD_BYTES_MAX
    assert len(encode(batch)) > RECORD_BYTES_MAX / 2 or len(taken) == 1000


def test_split_keeps_byte_counts_exact() -> None:
    whole = buffered(job_ref(), range(10))
    front = whole.split(4)
    assert front.byte_count == buffered(job_ref(), [0, 1, 2, 3]).byte_count
    assert whole.byte_count == buffered(job_ref(), [4, 5, 6, 7, 8, 9]).byte_count


def test_batch_headers() -> None:
    chunk = buffered(job_ref(), [0, 1, 2])
    headers = dict(batch_headers(batch_key_of(chunk.job), [chunk]))
    assert headers == {
        "kind": b"batch",
        "schema": b"1",
        "pool": b"p",
        "model": b"m@1",
        "endpoint": b"/v1/embeddings",
        "items": b"3",
        "tokens": b"30",
    }


def test_failures_of_an_unreadable_record_come_from_its_headers() -> None:
    chunk = Chunk(job_ref(), [Item(index, "c", b"", 1, attempt=2) for index in (3, 4)])
    named = NamedItems(UUID(int=1), 1, UUID(int=1), (3, 4))
    outcomes = failed_outcomes(named, dict(chunk_headers(chunk, "bulk")))
    assert (outcomes.job.model, outcomes.job.model_version) == ("m", "1")
    assert [(o.index, o.attempt, o.custom_id) for o in outcomes.items] == [
        (3, 2, None),
        (4, 2, None),
    ]
    assert all(o.outcome is Outcome.FAILED and o.status_code == 0 for o in outcomes.items)


@pytest.mark.parametrize(
    ("items", "topics"),
    [
        (b"0-99", ["dead_letters", "results"]),
        (b"0-3,17-17,900000-900001", ["dead_letters", "results"]),
        (b"0-100", ["dead_letters"]),  # gaps: its other items may run elsewhere
        (b"5-4", ["dead_letters"]),
        (b"x", ["dead_letters"]),
    ],
)
def test_only_a_range_that_one_chunk_can_fill_is_failed(items: bytes, topics: list[str]) -> None:
    chunk = Chunk(job_ref(), [Item(0, "c", b"", 1)])
    headers = dict(chunk_headers(chunk, "bulk")) | {"items": items}
    record = ReceivedRecord(
        "requests.bulk", 3, 17, b"key", list(headers.items()), b"x" * 2_000_000, 0
    )
    log = SentRecords()
    assert send_unreadable(log, DeadLetterSender(log), record, lambda _: None) == len(topics)
    assert [sent.topic for sent in log.records] == topics
    letter = decode(DeadLetter, log.records[0].value, log.records[0].headers)
    assert (letter.topic, letter.partition, letter.offset) == ("requests.bulk", 3, 17)


def test_exactly_the_items_of_an_ordered_chunk_fail() -> None:
    indexes = [900_000, 3, 17, 2, 5]
    chunk = Chunk(job_ref(), [Item(index, "c", b"", 1) for index in indexes], position=40)
    headers = chunk_headers(chunk, "bulk")
    record = ReceivedRecord("requests.bulk", 3, 17, b"key", headers, b"x", 0)
    log = SentRecords()
    assert send_unreadable(log, DeadLetterSender(log), record, lambda _: None) == 2
    outcomes = decode(Outcomes, log.records[1].value, log.records[1].headers)
    assert [one.index for one in outcomes.items] == sorted(indexes)


@pytest.mark.parametrize("name", ["model", "attempt", "class"])
@pytest.mark.parametrize("value", [None, b"9" * 30, b"-1", b"\xff"])
def test_other_headers_are_not_required_to_fail_items(name: str, value: bytes | None) -> None:
    chunk = Chunk(job_ref(), [Item(0, "c", b"", 1)])
    headers = cast(dict[str, bytes], dict(chunk_headers(chunk, "bulk")) | {name: value})
    record = ReceivedRecord("requests.bulk", 3, 17, b"key", list(headers.items()), b"x", 0)
    log = SentRecords()
    assert send_unreadable(log, DeadLetterSender(log), record, lambda _: None) == 2
    letter, failures = log.records
    decode(DeadLetter, letter.value, letter.headers)
    outcomes = decode(Outcomes, failures.value, failures.headers)
    assert [(o.index, o.attempt) for o in outcomes.items] == [(0, 1)]


def of_replica(replica: str, granted: int, job_class: str = "bulk") -> ReceivedRecord:
    value = encode(capacity(granted, replica_id=replica, job_class=job_class))
    key = f"p:{replica}:{job_class}".encode()
    return ReceivedRecord("capacity", 0, 0, key, kind_headers(Capacity), value, 0)


def test_latest_capacity_of_each_replica_and_class_counts() -> None:
    torn = ReceivedRecord("capacity", 0, 1, None, kind_headers(Capacity), b"torn", 0)
    gone = ReceivedRecord("capacity", 0, 2, None, [], None, 0)
    first = [of_replica("a", 1), of_replica("b", 2), of_replica("a", 4, "interactive")]
    records = [*first, torn, gone, of_replica("a", 3)]
    assert len(list(newest_by_key(records))) == 5
    found = decoded(Capacity, newest_by_key(records))
    assert {(c.replica_id, c.job_class): c.granted["b"] for c in found} == {
        ("a", "bulk"): 3,
        ("b", "bulk"): 2,
        ("a", "interactive"): 4,
    }


def test_capacity_of_the_other_class_is_read_now_and_then() -> None:
    clock = ManualClock(100.0)
    wanted = CapacityFilter("bulk", clock.monotonic_s).is_relevant
    assert all(wanted(b"p:a:bulk") and wanted(b"no key of this form") for _ in range(3))
    assert [wanted(b"p:a:interactive") for _ in range(3)] == [True, False, False]
    assert wanted(b"p:b:interactive")
    clock.advance(OTHER_CLASS_S)
    assert [wanted(b"p:a:interactive") for _ in range(2)] == [True, False]


def test_failure_of_the_capacity_reader_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, object] = {}
    monkeypatch.setattr(
        record_reader, "TailReaderThread", lambda *_, **given: options.update(given)
    )
    told: list[Exception] = []
    capacity_reader(
        KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        "bulk",
        client_id="t",
        on_capacity=lambda _: None,
        on_failure=told.append,
    )
    assert options["on_failure"] == told.append


async def test_requeued_chunk_equals_its_first_emission() -> None:
    log, emitted = SentRecords(acknowledges=True), SentRecords()
    acknowledged: list[object] = []
    acks = OrderedAcks(acknowledged.append)
    sender = BatchSender(
        log,
        acks,
        identity=BatcherIdentity("b", "bulk"),
        in_flight_bytes_max=1000,
        on_settled=lambda: None,
        on_failure=lambda _: None,
    )
    ticket = acks.track(("requests.bulk", 0), "event", item_count=2, now_s=0.0)
    kept = buffered(job_ref(), [300, 301], ticket)
    kept.redelivered = True
    send_chunk(emitted, kept.to_record(), "bulk")

    sender.requeue(kept)

    (requeued,), (first,) = log.records, emitted.records
    assert requeued.headers == [*first.headers, REQUEUED_HEADER]
    assert replace(requeued, headers=first.headers) == first
    assert decode(Chunk, log.records[0].value, log.records[0].headers).redelivered
    await asyncio.sleep(0)
    assert acknowledged == ["event"]
    assert sender.in_flight_bytes == 0
