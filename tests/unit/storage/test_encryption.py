"""Goal: a body is decrypted with its key and context only; keys are shared and destroyed."""

import os
from uuid import UUID

import pytest

from storage.crypto.body_ciphers import (
    KEY_BYTES,
    BodyCipher,
    BodyDirection,
    BodyUnreadableError,
    CipherContext,
)
from storage.crypto.data_keys import KEY_CACHE_S_MAX, DataKeyDestroyedError, DataKeys
from storage.objects.errors import ObjectStoreUnavailableError
from tests.support.clock import ManualClock
from tests.support.memory_objects import MemoryStore

HERE = CipherContext(UUID(int=1), BodyDirection.IN, 12)
BODY = b'{"prompt":"secret"}'


@pytest.fixture
def cipher() -> BodyCipher:
    return BodyCipher(os.urandom(KEY_BYTES))


@pytest.mark.parametrize("body", [b"", b"x", BODY, BODY * 50_000])
def test_an_encrypted_body_can_be_decrypted(cipher: BodyCipher, body: bytes) -> None:
    encrypted = cipher.encrypt(body, HERE)
    assert b"secret" not in encrypted
    assert cipher.decrypt(encrypted, HERE) == body


def test_equal_bodies_have_different_ciphertexts(cipher: BodyCipher) -> None:
    assert cipher.encrypt(BODY, HERE) != cipher.encrypt(BODY, HERE)


@pytest.mark.parametrize(
    "context",
    [
        HERE._replace(job_id=UUID(int=2)),
        HERE._replace(direction=BodyDirection.OUT),
        HERE._replace(item_index=1),
        HERE._replace(item_index=120),
    ],
)
def test_another_context_is_refused(cipher: BodyCipher, context: CipherContext) -> None:
    with pytest.raises(BodyUnreadableError):
        cipher.decrypt(cipher.encrypt(BODY, HERE), context)


def test_another_key_is_refused(cipher: BodyCipher) -> None:
    with pytest.raises(BodyUnreadableError):
        BodyCipher(os.urandom(KEY_BYTES)).decrypt(cipher.encrypt(BODY, HERE), HERE)


def test_truncated_changed_or_plain_bodies_are_refused(cipher: BodyCipher) -> None:
    encrypted = cipher.encrypt(BODY, HERE)
    flipped = [
        encrypted[:at] + bytes([encrypted[at] ^ 1]) + encrypted[at + 1 :]
        for at in range(len(encrypted))
    ]
    cuts = [encrypted[:length] for length in range(len(encrypted))]
    for broken in [*flipped, *cuts, encrypted + b"x", BODY]:
        with pytest.raises(BodyUnreadableError) as refusal:
            cipher.decrypt(broken, HERE)
        assert "secret" not in f"{refusal.value} {refusal.value.facts}"


def test_a_second_creator_gets_the_first_key() -> None:
    store = MemoryStore()
    first, second = DataKeys(store, ManualClock()), DataKeys(store, ManualClock())
    encrypted = first.load_or_create("keys/a").encrypt(b"x", HERE)
    assert second.load_or_create("keys/a").decrypt(encrypted, HERE) == b"x"
    assert DataKeys(store, ManualClock()).load("keys/a").decrypt(encrypted, HERE) == b"x"
    assert len(store.objects["keys/a"]) == 32


def test_a_cached_key_is_not_read_again_until_it_expires() -> None:
    store, clock = MemoryStore(), ManualClock()
    keys = DataKeys(store, clock)
    keys.load_or_create("keys/a")
    store.is_away = True
    keys.load("keys/a")
    keys.load_or_create("keys/a")
    clock.now_s = KEY_CACHE_S_MAX
    assert keys.cached("keys/a") is None
    with pytest.raises(ObjectStoreUnavailableError):
        keys.load("keys/a")


def test_a_destroyed_key_is_never_created_by_a_reader() -> None:
    store = MemoryStore()
    keys = DataKeys(store, ManualClock())
    for broken in (None, b"", b"too short"):
        if broken is not None:
            store.objects["keys/a"] = broken
        with pytest.raises(DataKeyDestroyedError):
            keys.load("keys/a")
    assert keys.cached("keys/a") is None


def test_the_key_cache_is_bounded_and_evicts_the_least_used() -> None:
    keys = DataKeys(MemoryStore(), ManualClock(), cached_max=2)
    for name in ("keys/a", "keys/b", "keys/a", "keys/c"):
        keys.load_or_create(name)
    assert [keys.cached(f"keys/{n}") is not None for n in "abc"] == [True, False, True]
