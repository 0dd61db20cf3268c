"""Goal: what a replica says of a call that names a key can be read with that key alone."""

from uuid import UUID

import msgspec

from core.clock import SystemClock
from gpu_consumers.engines.engine import EngineAnswer
from storage.crypto.body_ciphers import END, BodyCipher, Place, Way
from storage.crypto.data_keys import DataKeys
from tests.support.memory_objects import MemoryStore
from tests.unit.gpu_consumers.online_bench import OnlineBench, call
from topics.records.records import Chunk

NAME = "keys/calls/api-1-5"
ID = UUID(int=1)
BODY = b'{"prompt":"secret"}'


def hidden(store: MemoryStore, body: bytes = BODY) -> tuple[Chunk, BodyCipher]:
    """A call as an API process sends it, and its cipher."""
    cipher = DataKeys(store, SystemClock()).ensure(NAME)
    chunk = call()
    job = msgspec.structs.replace(chunk.job, key_name=NAME)
    encrypted = cipher.encrypt(body, Place(ID, Way.IN, 0))
    (item,) = chunk.items
    return Chunk(job, [msgspec.structs.replace(item, body=encrypted)]), cipher


async def begun(bench: OnlineBench, chunk: Chunk) -> None:
    """Let it reach the engine, by way of the thread that loads its key."""
    bench.begin(chunk)
    await bench.end()


async def test_pieces_and_ends_are_encrypted_each_for_its_place() -> None:
    store = MemoryStore()
    bench, (chunk, cipher) = OnlineBench(objects=store), hidden(store)
    bench.engine.go.set()
    bench.engine.answer = EngineAnswer(400, b'{"error":"secret"}', 3, 2)
    await begun(bench, chunk)
    said = [
        cipher.decrypt(piece, Place(ID, Way.OUT, number))
        for number, piece in enumerate(bench.log.pieces())
    ]
    assert said == [b"1", b"2"]
    (end,) = [r.end for r in bench.log.replies if r.end is not None]
    assert cipher.decrypt(end.body, Place(ID, Way.OUT, END)) == b'{"error":"secret"}'
    assert [bill.body for bill in bench.log.bills] == [b""]
    assert b"secret" not in msgspec.msgpack.encode(bench.log.replies)


async def test_a_call_without_its_key_is_over_and_never_reaches_the_engine() -> None:
    store = MemoryStore()
    bench, (chunk, _) = OnlineBench(objects=store), hidden(store)
    store.objects.clear()
    await begun(bench, chunk)
    (end,) = [r.end for r in bench.log.replies if r.end is not None]
    assert end.status_code == 500
    assert b"body_unreadable" in end.body
    assert (bench.engine.served, bench.finished) == (0, 1)


async def test_a_store_that_is_away_puts_it_back_as_it_came() -> None:
    store = MemoryStore()
    bench, (chunk, _) = OnlineBench(objects=store), hidden(store)
    store.is_away = True
    await begun(bench, chunk)
    (back,) = bench.log.put_back
    assert back.items == chunk.items
    assert back.job.key_name == NAME
    assert bench.engine.served == 0
