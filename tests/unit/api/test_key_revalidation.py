"""Goal: revoking a key ends the requests that use it, and an outage does not."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.auth.authentication import KeyRevalidator
from api.auth.key_cache import KeyCache
from api.http.errors import ApiError
from api.runtime.database import DatabaseUnavailableError
from core.clock import Clock
from core.ids import new_uuid
from tenancy.api_keys import Principal

GOOD = "sk-" + "a" * 43 + "32e48b99"  # as a key is written; the checksum is right


class Keys:
    """The services that authentication needs, a clock, and a Postgres that can be away."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys = KeyCache(ttl_s=1, clock=cast(Clock, self))
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

    def watch(self) -> KeyRevalidator:
        request = SimpleNamespace(headers={"authorization": f"Bearer {GOOD}"})
        return KeyRevalidator(cast(Any, request), cast(Any, self))


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
