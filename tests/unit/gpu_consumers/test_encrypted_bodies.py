"""Goal: only the engine of a replica gets plain bodies; none leaves the replica."""

from uuid import UUID

import msgspec
import pytest

from core.clock import SystemClock
from core.object_names import job_key_name
from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer, item_timeout_answer
from gpu_consumers.inflight.item_outcomes import outcome_of
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX, EncryptedBodies
from jobs.expansion.emission import encrypt_items
from storage.crypto.body_ciphers import ANSWER_END_INDEX, BodyCipher, BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeys
from tests.support.memory_objects import MemoryStore
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica, batch_of, call_chunk
from topics.metrics import FOREIGN_OBJECTS
from topics.records.records import Batch, Chunk, ItemOutcome, JobRef

BODY = b'{"prompt":"secret"}'
JOB_ID = UUID(int=1)
NAME = job_key_name(JOB_ID)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def encrypted_batch(store: MemoryStore, *bodies: bytes) -> Batch:
    """Return a batch that intake has encrypted."""
    batch = batch_of(*bodies)
    (part,) = batch.parts
    job = msgspec.structs.replace(part.job, key_name=NAME)
    cipher = DataKeys(store, SystemClock()).load_or_create(NAME)
    items = list(encrypt_items(job, part.items, cipher))
    assert {item.custom_id for item in items} == {""}
    return msgspec.structs.replace(batch, parts=[Chunk(job, items)])


def job_of(batch: Batch) -> JobRef:
    return batch.parts[0].job


async def run(batch: Batch, store: MemoryStore) -> BulkReplica:
    replica = BulkReplica(objects=store)
    replica.start_batch(batch)
    assert await replica.wait_ended() is None
    assert replica.consumer.offsets == [0]
    return replica


def cipher_of(store: MemoryStore) -> BodyCipher:
    return DataKeys(store, SystemClock()).load(NAME)


async def test_the_engine_gets_plain_bodies_and_the_log_does_not(store: MemoryStore) -> None:
    batch = encrypted_batch(store, BODY, BODY)
    assert all(b"secret" not in item.body for item in batch.parts[0].items)
    replica = await run(batch, store)
    assert replica.engine.executed == [[BODY, BODY]]
    assert store.read_count == 1  # the key, once
    for index, outcome in enumerate(replica.log.outcomes):
        place = CipherContext(JOB_ID, BodyDirection.OUT, index)
        assert outcome.custom_id is None
        assert cipher_of(store).decrypt(outcome.body, place) == b"{}"


async def test_jobs_without_a_key_do_not_need_the_store(store: MemoryStore) -> None:
    store.is_away = True
    replica = await run(batch_of(BODY), store)
    assert [outcome.body for outcome in replica.log.outcomes] == [b"{}"]


async def test_an_item_without_its_key_fails(store: MemoryStore) -> None:
    batch = encrypted_batch(store, BODY)
    store.objects.clear()
    replica = await run(batch, store)
    (outcome,) = replica.log.outcomes
    assert replica.engine.executed == []
    assert (outcome.outcome, outcome.status_code, outcome.body) == (Outcome.FAILED, 0, b"")
    assert (outcome.error_code, outcome.retryable) == ("key_gone", False)


async def test_a_body_encrypted_for_another_place_fails_alone(store: MemoryStore) -> None:
    batch = encrypted_batch(store, BODY, BODY, BODY)
    job, items = batch.parts[0].job, batch.parts[0].items
    swapped = [
        msgspec.structs.replace(items[0], body=items[1].body),
        items[1],
        msgspec.structs.replace(items[2], body=BODY),  # not encrypted
    ]
    replica = await run(msgspec.structs.replace(batch, parts=[Chunk(job, swapped)]), store)
    assert replica.engine.executed == [[BODY]]
    ends = {o.index: (o.outcome, o.error_code) for o in replica.log.outcomes}
    failed = (Outcome.FAILED, "body_unreadable")
    assert ends == {0: failed, 1: (Outcome.SUCCEEDED, None), 2: failed}


async def test_an_unavailable_store_requeues_encrypted_items(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_consumers.bulk.batch_execution.STORE_WAIT_S", 0.0)
    batch = encrypted_batch(store, BODY, BODY)
    store.is_away = True
    replica = await run(batch, store)
    assert replica.log.outcomes == []
    assert replica.log.requeued_indexes == [0, 1]
    assert replica.engine.executed == []


@pytest.mark.parametrize(
    ("status_code", "code", "shown"),
    [(504, "item_timeout", "item_timeout"), (400, "my_secret_words", None), (500, None, None)],
)
async def test_only_our_error_codes_are_stored_in_the_clear(
    store: MemoryStore, status_code: int, code: str | None, shown: str | None
) -> None:
    batch = encrypted_batch(store, BODY)
    answer = error_answer(status_code, "no secret here", code=code)
    if code == "item_timeout":
        answer = item_timeout_answer(1)
    outcome = outcome_of(batch.parts[0].items[0], answer)
    (encrypted_outcome,) = await EncryptedBodies(store, SystemClock()).encrypt_outcomes(
        job_of(batch), [outcome]
    )
    assert encrypted_outcome.error_code == shown
    assert encrypted_outcome.retryable == outcome.retryable
    assert b"secret" not in msgspec.msgpack.encode(encrypted_outcome)
    place = CipherContext(JOB_ID, BodyDirection.OUT, 0)
    assert cipher_of(store).decrypt(encrypted_outcome.body, place) == outcome.body


async def test_a_large_answer_is_encrypted_before_it_is_stored(store: MemoryStore) -> None:
    batch = encrypted_batch(store, BODY)
    body = b'"secret%b"' % (b"x" * ANSWER_BYTES_MAX)
    outcome = ItemOutcome(0, "c0", Outcome.SUCCEEDED, 200, body)
    (encrypted_outcome,) = await EncryptedBodies(store, SystemClock()).encrypt_outcomes(
        job_of(batch), [outcome]
    )
    assert len(encrypted_outcome.body) > ANSWER_BYTES_MAX
    assert b"secret" not in encrypted_outcome.body


@pytest.mark.parametrize("key_name", [job_key_name(UUID(int=2)), "keys/calls/api-1-5", "files/1"])
async def test_an_item_under_the_key_of_another_job_fails(
    store: MemoryStore, key_name: str
) -> None:
    """Its answer would be readable for the owner of that key."""
    batch = encrypted_batch(store, BODY)
    store.objects[key_name] = store.objects[NAME]
    job = msgspec.structs.replace(job_of(batch), key_name=key_name)
    counted = FOREIGN_OBJECTS.labels("key_name")._value.get()
    replica = await run(
        msgspec.structs.replace(batch, parts=[Chunk(job, batch.parts[0].items)]), store
    )
    (outcome,) = replica.log.outcomes
    assert replica.engine.executed == []
    assert (outcome.outcome, outcome.body, outcome.retryable) == (Outcome.FAILED, b"", False)
    assert outcome.error_code == "foreign_object"
    assert FOREIGN_OBJECTS.labels("key_name")._value.get() > counted


CALL_KEY = "keys/calls/api-1-5"


def encrypted_call(store: MemoryStore, body: bytes = BODY) -> tuple[Chunk, BodyCipher]:
    """Return a call as an API process sends it, and its cipher."""
    cipher = DataKeys(store, SystemClock()).load_or_create(CALL_KEY)
    chunk = call_chunk()
    job = msgspec.structs.replace(chunk.job, key_name=CALL_KEY)
    encrypted = cipher.encrypt(body, CipherContext(JOB_ID, BodyDirection.IN, 0))
    (item,) = chunk.items
    return Chunk(job, [msgspec.structs.replace(item, body=encrypted)]), cipher


async def test_pieces_and_ends_are_encrypted_for_their_place(store: MemoryStore) -> None:
    replica, (chunk, cipher) = OnlineReplica(objects=store), encrypted_call(store)
    replica.engine.answer = EngineAnswer(400, b'{"error":"secret"}', 3, 2)
    await replica.complete(chunk)
    decrypted = [
        cipher.decrypt(piece, CipherContext(JOB_ID, BodyDirection.OUT, number))
        for number, piece in enumerate(replica.log.pieces)
    ]
    assert decrypted == [b"1", b"2"]
    (end,) = replica.log.ends
    assert (
        cipher.decrypt(end.body, CipherContext(JOB_ID, BodyDirection.OUT, ANSWER_END_INDEX))
        == b'{"error":"secret"}'
    )
    assert [bill.body for bill in replica.log.bills] == [b""]
    assert b"secret" not in msgspec.msgpack.encode(replica.log.replies)


async def test_a_call_without_its_key_fails_before_the_engine(store: MemoryStore) -> None:
    replica, (chunk, _) = OnlineReplica(objects=store), encrypted_call(store)
    store.objects.clear()
    await replica.complete(chunk)
    (end,) = replica.log.ends
    assert end.status_code == 500
    assert b"body_unreadable" in end.body
    assert (replica.engine.served, replica.finished_count) == (0, 1)


async def test_a_call_under_the_key_of_a_job_fails_before_the_engine(store: MemoryStore) -> None:
    replica, (chunk, _) = OnlineReplica(objects=store), encrypted_call(store)
    foreign = job_key_name(UUID(int=2))
    store.objects[foreign] = store.objects[CALL_KEY]
    job = msgspec.structs.replace(chunk.job, key_name=foreign)
    await replica.complete(Chunk(job, chunk.items))
    (end,) = replica.log.ends
    assert (end.status_code, replica.engine.served) == (500, 0)
    assert b"foreign_object" in end.body


async def test_an_unavailable_store_requeues_an_encrypted_call_unchanged(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_consumers.online.call_server._STORE_WAIT_S", 0.0)
    replica, (chunk, _) = OnlineReplica(objects=store), encrypted_call(store)
    store.is_away = True
    await replica.complete(chunk)
    (requeued,) = replica.log.requeued
    assert requeued.items == chunk.items
    assert requeued.job.key_name == CALL_KEY
    assert replica.engine.served == 0
