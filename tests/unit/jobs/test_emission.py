"""Goal: items are read in order from any cursor and sent; a failure stops no other job."""

import json
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from core.clock import SystemClock
from core.errors import MillraceError
from core.ids import new_uuid
from core.limits import CHUNK_BYTES_MAX
from core.object_names import job_key_name
from jobs.expansion.cursors import ExpansionCursor
from jobs.expansion.emission import ItemReader, record_job_failure, send_items
from jobs.input.line_reader import InputChangedError
from storage.crypto.body_ciphers import BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeyDestroyedError, DataKeys
from storage.objects.errors import (
    ObjectKeyError,
    ObjectNotFoundError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from tests.support.memory_objects import MemoryStore
from tests.support.recording_sender import SentRecords
from topics.errors import DeliveryError, ProducerFatalError
from topics.records.codec import decode
from topics.records.records import Chunk, Item, JobRef

JOB = JobRef(UUID(int=7), 20_000, UUID(int=9), "small", "1", "pool", "/v1/embeddings", "in", 0.0)


def stored(folder: Path, data: bytes) -> LocalObjectStore:
    objects = LocalObjectStore(folder, clock=SystemClock())
    write_object(objects, "in", data)
    return objects


def line(index: int, text: str = "x") -> bytes:
    body = {"model": "small", "input": text}
    request = {"custom_id": f"id-{index}", "method": "POST", "url": "/v1/embeddings"}
    return json.dumps(request | {"body": body}).encode()


def read_all(objects: LocalObjectStore, cursor: ExpansionCursor, count: int) -> list[Item]:
    """Use a new reader for each read, as after a crash."""
    found: list[Item] = []
    while True:
        reader = ItemReader(objects, JOB, cursor)
        items = reader.read_items(count, 10**9)
        cursor = reader.cursor
        reader.close()
        if not items:
            return found
        found += items


@pytest.mark.parametrize("count", [1, 2, 3, 100])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\r\n"])
def test_reading_resumes_at_any_cursor(tmp_path: Path, count: int, end: bytes) -> None:
    lines = [b"\xef\xbb\xbf" + line(0), b"", line(1) + b"\r", b"  ", line(2), line(3)]
    items = read_all(stored(tmp_path, b"\n".join(lines) + end), ExpansionCursor(), count)
    assert [(item.index, item.custom_id) for item in items] == [(n, f"id-{n}") for n in range(4)]
    assert items[0].body == b'{"model": "small", "input": "x"}'
    assert items[0].token_count == len(items[0].body) // 4


def test_a_large_item_is_sent_by_reference(tmp_path: Path) -> None:
    giant = line(1, "x" * CHUNK_BYTES_MAX)
    objects = stored(tmp_path, line(0) + b"\n" + giant)
    small, large = read_all(objects, ExpansionCursor(), 10)
    assert small.length == 0
    assert (large.body, large.custom_id) == (b"", "id-1")
    with objects.read("in", offset=large.offset, length=large.length) as blocks:
        assert b"".join(blocks) == giant


def test_reading_stops_at_the_byte_limit(tmp_path: Path) -> None:
    reader = ItemReader(stored(tmp_path, b"\n".join(map(line, range(9)))), JOB, ExpansionCursor())
    assert [len(reader.read_items(100, len(line(0)) + 1)) for _ in range(5)] == [2, 2, 2, 2, 1]


def test_a_line_that_validation_would_reject_raises(tmp_path: Path) -> None:
    reader = ItemReader(stored(tmp_path, line(0) + b"\njunk"), JOB, ExpansionCursor())
    with pytest.raises(InputChangedError):
        reader.read_items(10, 1000)


ENCRYPTED = msgspec.structs.replace(JOB, key_name=job_key_name(JOB.job_id))
ITEMS = [
    Item(0, "secret-id", b'{"input":"secret"}', 1),
    Item(1, "secret-id", b"", 1, offset=5, length=300_000),  # sent by reference
    Item(2, "secret-id", b'{"input":"secret"}', 1, attempt=2),  # a retry
]


def test_bodies_are_encrypted_and_custom_ids_left_out() -> None:
    store, sent = MemoryStore(), SentRecords()
    assert send_items(sent, ENCRYPTED, ITEMS, DataKeys(store, SystemClock())) == 3
    assert [*store.objects] == [ENCRYPTED.key_name]  # stored before any record is sent
    assert not any(b"secret" in record.value for record in sent.records)
    chunks = [decode(Chunk, record.value, record.headers) for record in sent.records]
    items = [item for chunk in chunks for item in chunk.items]
    assert {chunk.job for chunk in chunks} == {ENCRYPTED}
    assert [(i.custom_id, i.attempt, i.length) for i in items] == [
        ("", 1, 0),
        ("", 1, 300_000),
        ("", 2, 0),
    ]
    cipher = DataKeys(store, SystemClock()).load(ENCRYPTED.key_name)
    for index in (0, 2):
        place = CipherContext(JOB.job_id, BodyDirection.IN, index)
        assert cipher.decrypt(items[index].body, place) == ITEMS[index].body
    assert items[1].body == b""


def test_nothing_is_sent_without_keys_or_their_store() -> None:
    store, sent = MemoryStore(), SentRecords()
    with pytest.raises(DataKeyDestroyedError):
        send_items(sent, ENCRYPTED, ITEMS)
    store.is_away = True
    with pytest.raises(ObjectStoreUnavailableError):
        send_items(sent, ENCRYPTED, ITEMS, DataKeys(store, SystemClock()))
    assert sent.records == []


@pytest.mark.parametrize(
    "failure",
    [
        InputChangedError(),
        DataKeyDestroyedError(),
        ObjectKeyError(),
        ObjectNotFoundError(),
        ObjectStoreUnavailableError(),
        ObjectStoreRefusedError(s3_code="InvalidObjectState"),
    ],
    ids=lambda failure: failure.code,
)
def test_a_job_failure_is_recorded(failure: MillraceError) -> None:
    record_job_failure(new_uuid(), failure, "a job failed")


@pytest.mark.parametrize("failure", [DeliveryError(), ProducerFatalError(), MillraceError()])
def test_a_process_failure_is_raised(failure: MillraceError) -> None:
    with pytest.raises(MillraceError):
        record_job_failure(new_uuid(), failure, "a job failed")


def test_the_expected_output_is_part_of_the_estimate_up_to_the_limit(tmp_path: Path) -> None:
    chat = msgspec.structs.replace(JOB, endpoint="/v1/chat/completions")
    bodies = ({"model": "m"}, {"model": "m", "max_tokens": 50})
    lines = [json.dumps({"custom_id": "a", "body": body}).encode() for body in bodies]
    reader = ItemReader(stored(tmp_path, b"\n".join(lines)), chat, ExpansionCursor())
    items = reader.read_items(9, 10**9, 900.0)
    reader.close()
    prompts = [len(item.body) // 4 for item in items]
    assert [item.token_count for item in items] == [prompts[0] + 900, prompts[1] + 50]
