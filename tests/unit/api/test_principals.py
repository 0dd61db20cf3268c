"""Goal: a malformed key is refused without a query to Postgres."""

from typing import Any, cast

import pytest

from api.auth.authentication import authenticate_headers
from api.auth.key_cache import KeyCache
from api.http.errors import ApiError
from api.runtime.api_services import Services
from core.clock import SystemClock
from core.ids import new_uuid
from tenancy.api_keys import Principal

GOOD = "sk-" + "a" * 43 + "32e48b99"  # as a key is written; the checksum is right


class Keys:
    """The services that authentication needs; every look at Postgres is counted."""

    def __init__(self) -> None:
        self.keys = KeyCache(ttl_s=4, clock=SystemClock())
        self.database = self
        self.principal = Principal(new_uuid(), new_uuid())
        self.looks = 0

    async def run_across_tenants(self, _work: object, _secret: str) -> Principal:
        self.looks += 1
        return self.principal

    async def whose(self, secret: str) -> Principal:
        return await authenticate_headers(f"Bearer {secret}", None, cast(Services, cast(Any, self)))


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
