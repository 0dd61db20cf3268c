"""Goal: replies reach their caller only, and those of zero-retention calls nobody else."""

from uuid import UUID

import pytest

from api.online.await_reply.open_calls import OpenCall
from api.online.online_runtime import decode_replies
from api.online.send.call_keys import KEY_S, CallKeys, decrypt_end, decrypt_pieces, encrypt_item
from core.ids import new_uuid
from storage.crypto.body_ciphers import (
    ANSWER_END_INDEX,
    BodyCipher,
    BodyDirection,
    BodyUnreadableError,
    CipherContext,
)
from storage.objects.errors import ObjectStoreUnavailableError
from tests.support.clock import ManualClock
from tests.support.memory_objects import MemoryStore
from tests.support.online_calls import call_job
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Item, JobRef, Replies, Reply, ReplyEnd

ID = UUID(int=7)
SAID = b'{"said":"secret"}'


def job(key_name: str) -> JobRef:
    return call_job(job_id=ID, stream=True, key_name=key_name)


@pytest.fixture
def cipher() -> BodyCipher:
    return BodyCipher(bytes(32))


def piece(cipher: BodyCipher, number: int) -> bytes:
    return cipher.encrypt(b"%d" % number, CipherContext(ID, BodyDirection.OUT, number))


async def test_a_key_serves_an_hour_and_is_destroyed_an_hour_later() -> None:
    store, clock = MemoryStore(), ManualClock(5 * KEY_S)
    keys = CallKeys(store, clock, "api-1")
    first = await keys.current_key_name()
    assert await keys.current_key_name() == first
    assert keys.cipher(job("")) is None
    assert keys.cipher(job(first)) is not None
    clock.now_s += KEY_S
    second = await keys.current_key_name()
    await keys.destroy_expired()
    assert {*store.objects} == {first, second}
    clock.now_s += KEY_S
    await keys.destroy_expired()
    assert {*store.objects} == {second}
    store.is_away = True
    await keys.stop()
    store.is_away = False
    await keys.stop()
    assert store.objects == {}


async def test_without_the_store_no_key_is_created() -> None:
    store = MemoryStore()
    store.is_away = True
    keys = CallKeys(store, ManualClock(5 * KEY_S), "api-1")
    with pytest.raises(ObjectStoreUnavailableError):
        await keys.current_key_name()
    store.is_away = False
    assert keys.cipher(job(await keys.current_key_name())) is not None


def test_an_item_is_encrypted_unless_sent_by_reference(cipher: BodyCipher) -> None:
    item = Item(0, "req", SAID, 1)
    hidden = encrypt_item(job("k"), item, cipher)
    assert b"secret" not in hidden.body
    assert cipher.decrypt(hidden.body, CipherContext(ID, BodyDirection.IN, 0)) == SAID
    assert encrypt_item(job(""), item, None) is item


def test_pieces_decrypt_only_in_order(cipher: BodyCipher) -> None:
    pieces = [piece(cipher, number) for number in (3, 4)]
    assert decrypt_pieces(job("k"), pieces, 3, cipher) == [b"3", b"4"]
    for wrong in ([*reversed(pieces)], [b"4"], pieces[1:]):
        with pytest.raises(BodyUnreadableError):
            decrypt_pieces(job("k"), wrong, 3, cipher)


def test_an_end_is_decrypted_unless_it_is_a_plain_error(cipher: BodyCipher) -> None:
    hidden = cipher.encrypt(SAID, CipherContext(ID, BodyDirection.OUT, ANSWER_END_INDEX))
    for status_code in (200, 400):
        assert decrypt_end(job("k"), ReplyEnd(status_code, hidden), cipher).body == SAID
    for end in (ReplyEnd(200, b""), ReplyEnd(504, b'{"error":{}}')):
        assert decrypt_end(job("k"), end, cipher) is end
    with pytest.raises(BodyUnreadableError):
        decrypt_end(job("k"), ReplyEnd(200, SAID), cipher)


def test_a_call_decrypts_replies_and_ends_at_an_unreadable_one(cipher: BodyCipher) -> None:
    call = OpenCall(job("k"), now_s=0.0, cipher=cipher)
    execution = UUID(int=9)
    for number in (0, 1):
        call.receive_reply(Reply(ID, execution, [piece(cipher, number)]), replica_id="r", now_s=1.0)
    assert call.pieces == [b"0", b"1"]
    call.receive_reply(Reply(ID, execution, [piece(cipher, 1)]), replica_id="r", now_s=2.0)
    assert call.pieces == [b"0", b"1"]
    assert call.failure is not None
    assert call.failure.code == "stream_interrupted"


def record(caller: str, value: bytes | None = None) -> ReceivedRecord:
    replies = Replies(caller, "replica", [Reply(new_uuid(), new_uuid(), [b"{}"])])
    headers = [*kind_headers(Replies), ("caller", caller.encode())]
    return ReceivedRecord("replies", 0, 0, b"k", headers, value or encode(replies), 0)


def test_replies_to_others_and_unreadable_ones_are_skipped() -> None:
    replies = decode_replies(
        [record("other", b"unreadable"), record("me"), record("me", b"\xc1"), record("me")], "me"
    )

    assert [one.caller_id for one in replies] == ["me", "me"]
