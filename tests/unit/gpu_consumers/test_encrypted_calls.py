"""Goal: the reply to a call that names a key can be read only with that key."""

from uuid import UUID

import msgspec

from core.clock import SystemClock
from gpu_consumers.engines.engine import EngineAnswer
from storage.crypto.body_ciphers import ANSWER_END_INDEX, BodyCipher, BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeys
from tests.support.memory_objects import MemoryStore
from tests.unit.gpu_consumers.online_replica import OnlineReplica, call_chunk
from topics.records.records import Chunk

NAME = "keys/calls/api-1-5"
ID = UUID(int=1)
BODY = b'{"prompt":"secret"}'


def encrypted_call(store: MemoryStore, body: bytes = BODY) -> tuple[Chunk, BodyCipher]:
    """Return a call as an API process sends it, and its cipher."""
    cipher = DataKeys(store, SystemClock()).load_or_create(NAME)
    chunk = call_chunk()
    job = msgspec.structs.replace(chunk.job, key_name=NAME)
    encrypted = cipher.encrypt(body, CipherContext(ID, BodyDirection.IN, 0))
    (item,) = chunk.items
    return Chunk(job, [msgspec.structs.replace(item, body=encrypted)]), cipher


async def run_call(replica: OnlineReplica, chunk: Chunk) -> None:
    """Run a call to its end; a thread loads its key."""
    replica.start_batch(chunk)
    await replica.wait_ended()


async def test_pieces_and_ends_are_encrypted_for_their_place() -> None:
    store = MemoryStore()
    replica, (chunk, cipher) = OnlineReplica(objects=store), encrypted_call(store)
    replica.engine.gate.set()
    replica.engine.answer = EngineAnswer(400, b'{"error":"secret"}', 3, 2)
    await run_call(replica, chunk)
    decrypted = [
        cipher.decrypt(piece, CipherContext(ID, BodyDirection.OUT, number))
        for number, piece in enumerate(replica.log.pieces)
    ]
    assert decrypted == [b"1", b"2"]
    (end,) = [r.end for r in replica.log.replies if r.end is not None]
    assert (
        cipher.decrypt(end.body, CipherContext(ID, BodyDirection.OUT, ANSWER_END_INDEX))
        == b'{"error":"secret"}'
    )
    assert [bill.body for bill in replica.log.bills] == [b""]
    assert b"secret" not in msgspec.msgpack.encode(replica.log.replies)


async def test_a_call_without_its_key_fails_before_the_engine() -> None:
    store = MemoryStore()
    replica, (chunk, _) = OnlineReplica(objects=store), encrypted_call(store)
    store.objects.clear()
    await run_call(replica, chunk)
    (end,) = [r.end for r in replica.log.replies if r.end is not None]
    assert end.status_code == 500
    assert b"body_unreadable" in end.body
    assert (replica.engine.served, replica.finished_count) == (0, 1)


async def test_an_unavailable_store_requeues_an_encrypted_call_unchanged() -> None:
    store = MemoryStore()
    replica, (chunk, _) = OnlineReplica(objects=store), encrypted_call(store)
    store.is_away = True
    await run_call(replica, chunk)
    (requeued,) = replica.log.requeued
    assert requeued.items == chunk.items
    assert requeued.job.key_name == NAME
    assert replica.engine.served == 0
