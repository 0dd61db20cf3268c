"""Goal: only working keys are accepted, cached for a limited time, and checked again meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.auth.authentication import KeyRevalidator, authenticate_headers
from api.auth.failed_attempts import ADDRESSES_MAX, KNOWN_KEYS_MAX, FailedAttempts
from api.auth.key_cache import KeyCache, offered_secret
from api.http.errors import ApiError
from api.runtime.database import DatabaseUnavailableError
from core.clock import Clock
from core.ids import new_uuid
from tenancy.api_keys import Principal
from tenancy.key_secrets import key_secret, secret_hash
from tests.support.clock import ManualClock


def test_an_entry_expires_counted_from_the_query() -> None:
    clock = ManualClock(100.0)
    cache: KeyCache[Principal] = KeyCache(ttl_s=2, clock=clock)
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
    cache: KeyCache[Principal] = KeyCache(ttl_s=4, clock=clock)
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
    cache: KeyCache[Principal] = KeyCache(ttl_s=2, clock=ManualClock(100.0))
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


GOOD = "sk-" + "a" * 43 + "32e48b99"  # as a key is written; the checksum is right


class Keys:
    """The services that authentication needs, a clock, and a Postgres that can be away."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys: KeyCache[Principal] = KeyCache(ttl_s=1, clock=cast(Clock, self))
        self.failed_attempts = FailedAttempts(3, cast(Clock, self))
        self.database = self
        self.principal: Principal | None = Principal(new_uuid(), new_uuid())
        self.is_away = self.hangs = False
        self.looks = 0

    def monotonic_s(self) -> float:
        return self.now

    async def run_across_tenants(self, _work: object, _secret: str) -> Principal | None:
        self.looks += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_away:
            raise DatabaseUnavailableError
        return self.principal

    async def whose(self, secret: str) -> Principal:
        return await authenticate_headers(f"Bearer {secret}", None, cast(Any, self))

    def watch(self) -> KeyRevalidator:
        request = SimpleNamespace(headers={"authorization": f"Bearer {GOOD}"}, client=None)
        return KeyRevalidator(cast(Any, request), cast(Any, self))


@pytest.mark.parametrize(
    "secret", ["x", "sk-none", GOOD[:-1] + "0", GOOD + "0", "sk-" + "a" * 9000]
)
async def test_a_malformed_key_costs_no_query(secret: str) -> None:
    keys = Keys()
    with pytest.raises(ApiError) as refused:
        await keys.whose(secret)

    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    assert keys.looks == 0


async def test_a_key_is_queried_once() -> None:
    keys = Keys()
    assert [await keys.whose(GOOD) for _ in range(2)] == [keys.principal] * 2
    assert keys.looks == 1


async def test_a_key_is_checked_at_intervals() -> None:
    keys = Keys()
    watch = keys.watch()
    for keys.now in (0.5, 1.9, 2.0, 2.1, 3.9, 4.0):
        await watch.check_if_due()
    assert keys.looks == 2


async def test_a_revoked_key_is_detected() -> None:
    keys = Keys()
    watch = keys.watch()
    keys.principal = None
    await watch.check_if_due()
    keys.now = 2.0
    with pytest.raises(ApiError) as refused:
        await watch.check_if_due()
    assert refused.value.status == 401


async def test_a_cancelled_check_delays_the_next_one() -> None:
    keys = Keys()
    watch = keys.watch()
    keys.now = 2.0
    await watch.check_now()
    keys.now = 3.9
    await watch.check_if_due()
    assert keys.looks == 1
    keys.now, keys.hangs = 5.0, True
    looking = asyncio.create_task(watch.check_now())
    await asyncio.sleep(0)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    keys.now = 34.9
    await watch.check_if_due()
    assert keys.looks == 2


async def test_an_outage_is_not_a_revocation_and_is_rarely_retried() -> None:
    keys = Keys()
    watch = keys.watch()
    keys.is_away = True
    for keys.now in (2.0, 4.0, 31.9):
        await watch.check_if_due()
    assert keys.looks == 1
    keys.now, keys.is_away, keys.principal = 32.0, False, None
    with pytest.raises(ApiError):
        await watch.check_if_due()


def status_of(failures: FailedAttempts, address: str | None, secret: str | None = None) -> int:
    """Return the status of a refusal: 429 above the bound, else 401, which counts."""
    try:
        failures.check(address, secret)
    except ApiError as refused:
        return refused.status
    failures.add(address, secret, "unknown")
    return 401


def test_a_refused_address_is_told_when_to_try_again() -> None:
    failures = FailedAttempts(3, ManualClock(100.0))
    for _ in range(3):
        failures.add("1.2.3.4", None, "missing")
    with pytest.raises(ApiError) as refused:
        failures.check("1.2.3.4", None)
    assert refused.value.code == "too_many_failed_authentications"
    assert refused.value.headers == {"retry-after": "20"}


def test_failures_of_an_address_are_bounded() -> None:
    clock = ManualClock(100.0)
    failures = FailedAttempts(3, clock)
    assert [status_of(failures, "1.2.3.4") for _ in range(5)] == [401, 401, 401, 429, 429]
    assert status_of(failures, "1.2.3.5") == 401
    clock.now_s += 20.0  # a third of a minute
    assert [status_of(failures, "1.2.3.4") for _ in range(2)] == [401, 429]
    clock.now_s += 600.0
    assert [status_of(failures, "1.2.3.4") for _ in range(4)] == [401, 401, 401, 429]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:1.2.3.4", "1.2.3.4", True),
        (None, None, True),
        (None, "1.2.3.4", False),
        ("testclient", "testclient", True),
    ],
)
def test_which_addresses_share_a_bound(one: str | None, other: str | None, is_same: bool) -> None:
    failures = FailedAttempts(1, ManualClock(100.0))
    assert status_of(failures, one) == 401
    assert status_of(failures, other) == (429 if is_same else 401)


def test_a_key_that_worked_is_not_held_up_by_others() -> None:
    failures = FailedAttempts(1, ManualClock(100.0))
    failures.add_success(GOOD)
    assert [status_of(failures, "1.2.3.4") for _ in range(2)] == [401, 429]
    failures.check("1.2.3.4", GOOD)
    assert status_of(failures, "1.2.3.4", GOOD) == 401  # it was revoked
    assert status_of(failures, "1.2.3.4", GOOD) == 429


def test_the_memory_of_addresses_and_keys_is_bounded() -> None:
    failures = FailedAttempts(1, ManualClock(100.0))
    for number in range(ADDRESSES_MAX + 1):
        failures.add(f"address {number}", None, "missing")
    assert status_of(failures, "address 1") == 429
    assert status_of(failures, "address 0") == 401
    for number in range(KNOWN_KEYS_MAX + 1):
        failures.add_success(str(number))
    assert status_of(failures, "address 5000", "1") == 401
    assert status_of(failures, "address 6000", "0") == 429


def test_without_a_bound_nothing_is_refused() -> None:
    failures = FailedAttempts(0, ManualClock(100.0))
    assert {status_of(failures, "1.2.3.4") for _ in range(1000)} == {401}


async def test_an_address_above_its_bound_costs_no_query() -> None:
    keys = Keys()
    keys.principal = None
    statuses = []
    for _ in range(5):
        with pytest.raises(ApiError) as refused:
            await keys.whose(GOOD)
        statuses.append(refused.value.status)
    assert statuses == [401, 401, 401, 429, 429]
    assert keys.looks == 3


async def test_an_operator_key_is_named_as_such_without_a_query() -> None:
    keys = Keys()
    with pytest.raises(ApiError) as refused:
        await keys.whose(key_secret("sk-op-", bytes(32)))
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    assert "operator key" in refused.value.message
    assert keys.looks == 0
