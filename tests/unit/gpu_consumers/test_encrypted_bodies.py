"""Goal: a replica decrypts for its engine alone; nothing of a body leaves it in clear."""

from uuid import UUID

import msgspec
import pytest

from core.clock import SystemClock
from core.object_names import job_key_name
from core.outcomes import Outcome
from gpu_consumers.engines.error_answers import error_answer, item_timed_out
from gpu_consumers.inflight.outcomes import outcome_of
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX
from gpu_consumers.payloads.encrypted_bodies import EncryptedBodies
from jobs.expansion.emission import encrypt_items
from storage.crypto.body_ciphers import BodyCipher, Place, Way
from storage.crypto.data_keys import DataKeys
from tests.support.memory_objects import MemoryStore
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import Life, Log, TouchyEngine, batch_of, delivery
from topics.records.records import Batch, Chunk, ItemOutcome, JobRef

BODY = b'{"prompt":"secret"}'
JOB_ID = UUID(int=1)
NAME = job_key_name(JOB_ID)


def hidden_batch(store: MemoryStore, *bodies: bytes) -> Batch:
    """A batch as intake's encryption and the batcher leave it."""
    batch = batch_of(*bodies)
    (part,) = batch.parts
    job = msgspec.structs.replace(part.job, key_name=NAME)
    cipher = DataKeys(store, SystemClock()).ensure(NAME)
    items = list(encrypt_items(job, part.items, cipher))
    assert {item.custom_id for item in items} == {""}
    return msgspec.structs.replace(batch, parts=[Chunk(job, items)])


def job_of(batch: Batch) -> JobRef:
    return batch.parts[0].job


async def run(batch: Batch, store: MemoryStore) -> Life:
    life = Life(Log(), Attempts(), TouchyEngine(), store)
    life.lane.begin(delivery(batch))
    assert await life.end() is None
    assert life.consumer.offsets == [0]
    return life


def cipher_of(store: MemoryStore) -> BodyCipher:
    return DataKeys(store, SystemClock()).load(NAME)


async def test_the_engine_sees_bodies_and_the_log_does_not() -> None:
    store = MemoryStore()
    batch = hidden_batch(store, BODY, BODY)
    assert all(b"secret" not in item.body for item in batch.parts[0].items)
    life = await run(batch, store)
    assert life.engine.runs == [[BODY, BODY]]
    assert store.read_count == 1  # the key, for all items
    for index, outcome in enumerate(life.log.outcomes):
        place = Place(JOB_ID, Way.OUT, index)
        assert outcome.custom_id is None
        assert cipher_of(store).decrypt(outcome.body, place) == b"{}"


async def test_other_jobs_ask_the_store_nothing() -> None:
    store = MemoryStore()
    store.is_away = True
    life = await run(batch_of(BODY), store)
    assert [outcome.body for outcome in life.log.outcomes] == [b"{}"]


async def test_without_its_key_an_item_is_over_and_the_replica_is_not() -> None:
    store = MemoryStore()
    batch = hidden_batch(store, BODY)
    store.objects.clear()
    life = await run(batch, store)
    (outcome,) = life.log.outcomes
    assert life.engine.runs == []
    assert (outcome.outcome, outcome.status_code, outcome.body) == (Outcome.FAILED, 0, b"")
    assert (outcome.error_code, outcome.retryable) == ("key_gone", False)


async def test_a_body_in_another_place_fails_alone() -> None:
    store = MemoryStore()
    batch = hidden_batch(store, BODY, BODY, BODY)
    job, items = batch.parts[0].job, batch.parts[0].items
    swapped = [
        msgspec.structs.replace(items[0], body=items[1].body),
        items[1],
        msgspec.structs.replace(items[2], body=BODY),  # in clear where it must not be
    ]
    life = await run(msgspec.structs.replace(batch, parts=[Chunk(job, swapped)]), store)
    assert life.engine.runs == [[BODY]]
    ends = {o.index: (o.outcome, o.error_code) for o in life.log.outcomes}
    failed = (Outcome.FAILED, "body_unreadable")
    assert ends == {0: failed, 1: (Outcome.SUCCEEDED, None), 2: failed}


async def test_a_store_that_is_away_sends_items_back_as_they_came() -> None:
    store = MemoryStore()
    batch = hidden_batch(store, BODY, BODY)
    store.is_away = True
    life = await run(batch, store)
    assert life.log.outcomes == []
    assert life.log.put_back == [0, 1]
    assert life.engine.runs == []


@pytest.mark.parametrize(
    ("status_code", "code", "shown"),
    [(504, "item_timeout", "item_timeout"), (400, "my_secret_words", None), (500, None, None)],
)
async def test_beside_a_failure_stands_only_a_code_of_ours(
    status_code: int, code: str | None, shown: str | None
) -> None:
    store = MemoryStore()
    batch = hidden_batch(store, BODY)
    answer = error_answer(status_code, "no secret here", code=code)
    if code == "item_timeout":
        answer = item_timed_out(1)
    outcome = outcome_of(batch.parts[0].items[0], answer)
    (hidden,) = await EncryptedBodies(store, SystemClock()).hidden(job_of(batch), [outcome])
    assert hidden.error_code == shown
    assert hidden.retryable == outcome.retryable
    assert b"secret" not in msgspec.msgpack.encode(hidden)
    place = Place(JOB_ID, Way.OUT, 0)
    assert cipher_of(store).decrypt(hidden.body, place) == outcome.body


async def test_a_large_answer_is_encrypted_before_it_is_an_object() -> None:
    store = MemoryStore()
    batch = hidden_batch(store, BODY)
    body = b'"secret%b"' % (b"x" * ANSWER_BYTES_MAX)
    outcome = ItemOutcome(0, "c0", Outcome.SUCCEEDED, 200, body)
    (hidden,) = await EncryptedBodies(store, SystemClock()).hidden(job_of(batch), [outcome])
    assert len(hidden.body) > ANSWER_BYTES_MAX
    assert b"secret" not in hidden.body
