"""Goal: items of a zero-retention job are unreadable on the log without the job's key."""

from uuid import UUID

import pytest

from core.clock import SystemClock
from core.object_names import job_key_name
from jobs.expansion.emission import send_items
from storage.crypto.body_ciphers import BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeyDestroyedError, DataKeys
from storage.objects.errors import ObjectStoreUnavailableError
from tests.support.memory_objects import MemoryStore
from tests.support.recording_sender import SentRecords
from topics.records.codec import decode
from topics.records.records import Chunk, Item, JobRef

JOB_ID = UUID(int=3)
JOB = JobRef(
    job_id=JOB_ID,
    day=1,
    tenant_id=UUID(int=1),
    model="m",
    model_version="1",
    pool="p",
    endpoint="/v1/embeddings",
    input_key="files/in",
    deadline_s=0,
    key_name=job_key_name(JOB_ID),
)
ITEMS = [
    Item(0, "secret-id", b'{"input":"secret"}', 1),
    Item(1, "secret-id", b"", 1, offset=5, length=300_000),  # sent by reference
    Item(2, "secret-id", b'{"input":"secret"}', 1, attempt=2),  # a retry
]


def test_bodies_are_encrypted_and_custom_ids_left_out() -> None:
    store, sent = MemoryStore(), SentRecords()
    assert send_items(sent, JOB, ITEMS, DataKeys(store, SystemClock())) == 3
    assert [*store.objects] == [JOB.key_name]  # stored before any record is sent
    assert not any(b"secret" in record.value for record in sent.records)
    chunks = [decode(Chunk, record.value, record.headers) for record in sent.records]
    items = [item for chunk in chunks for item in chunk.items]
    assert {chunk.job for chunk in chunks} == {JOB}
    assert [(i.custom_id, i.attempt, i.length) for i in items] == [
        ("", 1, 0),
        ("", 1, 300_000),
        ("", 2, 0),
    ]
    cipher = DataKeys(store, SystemClock()).load(JOB.key_name)
    for index in (0, 2):
        place = CipherContext(JOB_ID, BodyDirection.IN, index)
        assert cipher.decrypt(items[index].body, place) == ITEMS[index].body
    assert items[1].body == b""


def test_nothing_is_sent_without_keys_or_their_store() -> None:
    store, sent = MemoryStore(), SentRecords()
    with pytest.raises(DataKeyDestroyedError):
        send_items(sent, JOB, ITEMS)
    store.is_away = True
    with pytest.raises(ObjectStoreUnavailableError):
        send_items(sent, JOB, ITEMS, DataKeys(store, SystemClock()))
    assert sent.records == []
