"""Goal: only authenticated keys are cached, and only for the time to live."""

import pytest

from api.auth.key_cache import KeyCache, offered_secret
from core.ids import new_uuid
from tenancy.api_keys import Principal, secret_hash
from tests.support.clock import ManualClock


def test_an_entry_expires_counted_from_the_query() -> None:
    clock = ManualClock(100.0)
    cache = KeyCache(ttl_s=2, clock=clock)
    principal = Principal(new_uuid(), new_uuid())
    asked_s = cache.now_s()
    clock.now_s += 1  # the query took a second
    cache.remember("a", principal, asked_s)

    assert cache.find("a") == principal
    assert cache.find("b") is None
    clock.now_s += 1
    assert cache.find("a") is None


def test_confirm_extends_working_keys_and_drops_others() -> None:
    clock = ManualClock(100.0)
    cache = KeyCache(ttl_s=4, clock=clock)
    kept, revoked, idle = (Principal(new_uuid(), new_uuid()) for _ in range(3))
    for secret, principal in (("kept", kept), ("revoked", revoked), ("idle", idle)):
        cache.remember(secret, principal, cache.now_s())
    assert len(cache.take_used_hashes()) == 3
    clock.now_s += 3
    assert cache.find("kept") == kept
    assert cache.find("revoked") == revoked

    asked_s, asked = cache.now_s(), cache.take_used_hashes()
    clock.now_s += 0.5  # the query took a while
    cache.confirm(asked, {secret_hash("kept"): kept}, asked_s)

    assert len(asked) == 2
    assert cache.find("revoked") is None
    clock.now_s += 3.4
    assert cache.find("kept") == kept
    assert cache.find("idle") is None
    clock.now_s += 0.1
    assert cache.find("kept") is None


def test_the_cache_is_limited() -> None:
    cache = KeyCache(ttl_s=2, clock=ManualClock(100.0))
    principal = Principal(new_uuid(), new_uuid())
    for number in range(10_001):
        cache.remember(str(number), principal, cache.now_s())

    assert cache.find("0") is None
    assert cache.find("1") == principal


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "secret"),
    [
        ("Bearer sk-a", None, "sk-a"),
        ("bearer  sk-a ", None, "sk-a"),
        ("Bearer sk-a", "sk-b", "sk-a"),
        (None, "sk-b", "sk-b"),
        ("Basic eA==", "sk-b", "sk-b"),
        ("Basic eA==", None, None),
        ("Bearer ", None, None),
        (None, None, None),
    ],
)
def test_headers_that_carry_a_secret(
    authorization: str | None, x_api_key: str | None, secret: str | None
) -> None:
    assert offered_secret(authorization, x_api_key) == secret
