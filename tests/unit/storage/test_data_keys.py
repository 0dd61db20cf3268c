"""Goal: all callers get one key, which is cached for a time and destroyed with its object."""

from uuid import UUID

import pytest

from storage.crypto.body_ciphers import BodyDirection, CipherContext
from storage.crypto.data_keys import KEY_CACHE_S_MAX, DataKeyDestroyedError, DataKeys
from storage.objects.errors import ObjectStoreUnavailableError
from tests.support.clock import ManualClock
from tests.support.memory_objects import MemoryStore

HERE = CipherContext(UUID(int=1), BodyDirection.IN, 0)


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
