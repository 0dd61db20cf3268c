"""Goal: calls find models without a query, tenants only their own, and no retired version."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from api.http.errors import ApiError
from api.online.admit import model_cache
from api.online.admit.model_cache import ModelCache
from api.runtime.database import Database, DatabaseUnavailableError
from registry.errors import AmbiguousVersionError
from registry.models import ModelVersion
from tests.support.clock import ManualClock

CHAT = "/v1/chat/completions"
MINE, YOURS = UUID(int=1), UUID(int=2)
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
MODEL = ModelVersion("m", "a" * 64, "p", "vllm", (CHAT,), CREATED, "signed")
ADAPTER = replace(MODEL, name="adapter", requested_name="", tenant_id=MINE)


class Registry:
    """The registry in memory, behind a database that counts and may be away."""

    def __init__(self, *listed: ModelVersion) -> None:
        self.listed, self.queries = list(listed), 0
        self.found: dict[str, ModelVersion | Exception] = {}
        self.retired: set[str] = set()
        self.is_away = False

    async def run_across_tenants(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.queries += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise DatabaseUnavailableError
        return work(None, *arguments)

    def resolve(self, _: None, name: str, *, tenant_id: UUID | None) -> ModelVersion | None:
        found = self.found.get(name)
        if isinstance(found, Exception):
            raise found
        return found if found is None or found.tenant_id in (None, tenant_id) else None


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry(MODEL, replace(MODEL, requested_name="prod"), ADAPTER)
    monkeypatch.setattr(model_cache, "list_models", lambda _, **__: registry.listed)
    monkeypatch.setattr(model_cache, "find_retired", lambda _, __: registry.retired)
    monkeypatch.setattr(model_cache, "resolve", registry.resolve)
    return registry


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def cache(registry: Registry, clock: ManualClock) -> ModelCache:
    return ModelCache(cast(Database, registry), clock)


async def refresh(cache: ModelCache) -> None:
    """Refresh once."""
    task = asyncio.create_task(cache.refresh_periodically(60))
    for _ in range(10):  # its query is answered at the next turn
        await asyncio.sleep(0)
    task.cancel()


async def code(cache: ModelCache, name: str, tenant_id: UUID | None = MINE) -> str | None:
    with pytest.raises(ApiError) as refused:
        await cache.find(name, CHAT, left_s=1, tenant_id=tenant_id)
    return refused.value.code


async def test_listed_names_and_aliases_need_no_query(
    registry: Registry, cache: ModelCache
) -> None:
    await refresh(cache)
    before = registry.queries
    for name in ("m", "prod"):
        found = await cache.find(name, CHAT, left_s=1, tenant_id=YOURS)
        assert (found.name, found.requested_name) == ("m", name)
    assert await cache.find("adapter", CHAT, left_s=1, tenant_id=MINE) == ADAPTER
    assert registry.queries == before
    assert cache.serving(CHAT, MINE) == {"m": "p", "prod": "p", "adapter": "p"}
    assert cache.serving(CHAT, YOURS) == {"m": "p", "prod": "p"}
    assert cache.serving("/v1/score", MINE) == {}


async def test_a_private_adapter_is_unknown_to_others(
    registry: Registry, cache: ModelCache
) -> None:
    pinned = replace(ADAPTER, requested_name=f"{ADAPTER.id}")
    registry.found[ADAPTER.id] = pinned
    await refresh(cache)
    assert await code(cache, "adapter", YOURS) == "model_not_found"
    assert await code(cache, "adapter", None) == "model_not_found"
    assert await code(cache, ADAPTER.id, YOURS) == "model_not_found"
    # What was not found for one tenant is found for the other, and is not shown to the first.
    assert await cache.find(ADAPTER.id, CHAT, left_s=1, tenant_id=MINE) == pinned
    assert await code(cache, ADAPTER.id, YOURS) == "model_not_found"


async def test_a_pinned_version_is_looked_up_once_until_it_is_retired(
    registry: Registry, cache: ModelCache
) -> None:
    text = f"m@{'a' * 12}"
    registry.found[text] = replace(MODEL, requested_name=text)
    await refresh(cache)
    before = registry.queries
    finds = [cache.find(text, CHAT, left_s=1, tenant_id=MINE) for _ in range(5)]
    assert {found.version for found in await asyncio.gather(*finds)} == {MODEL.version}
    await refresh(cache)
    await cache.find(text, CHAT, left_s=1, tenant_id=YOURS)
    assert registry.queries == before + 2  # one of them refreshed

    registry.retired = {MODEL.id}
    registry.found[text] = replace(MODEL, requested_name=text, retired_at=CREATED)
    await refresh(cache)
    assert await code(cache, text) == "model_retired"


async def test_a_model_that_a_call_found_since_the_refresh_is_served(
    registry: Registry, cache: ModelCache
) -> None:
    await refresh(cache)
    registry.found["new"] = replace(MODEL, name="new", requested_name="", pool="q")
    registry.found["mine"] = replace(ADAPTER, name="mine")
    for name in ("new", "mine"):
        await cache.find(name, CHAT, left_s=1, tenant_id=MINE)
    listed = {"m": "p", "prod": "p"}
    assert cache.serving(CHAT, YOURS) == listed | {"new": "q"}
    assert cache.serving(CHAT, MINE) == listed | {"adapter": "p", "new": "q", "mine": "p"}


async def test_the_pool_of_a_known_model_is_told_to_those_who_may_use_it(
    cache: ModelCache,
) -> None:
    await refresh(cache)
    assert cache.known_pool("adapter", MINE) == ADAPTER.pool
    assert cache.known_pool("adapter", YOURS) is None
    assert cache.known_pool("nothing", MINE) is None


async def test_refusals_are_kept_for_two_seconds(
    registry: Registry, cache: ModelCache, clock: ManualClock
) -> None:
    registry.found["m@a"] = AmbiguousVersionError("Give more digits.")
    for name, expected in (("nothing", "model_not_found"), ("m@a", "model_version_ambiguous")):
        before = registry.queries
        assert [await code(cache, name) for _ in range(3)] == [expected] * 3
        assert registry.queries == before + 1
    clock.now_s += 2.5
    registry.found["nothing"] = MODEL
    assert await cache.find("nothing", CHAT, left_s=1, tenant_id=MINE) == MODEL


@pytest.mark.parametrize("name", ["", "a b", "ü", "\x00", "x" * 1000])
async def test_a_text_that_names_no_model_needs_no_query(
    registry: Registry, cache: ModelCache, name: str
) -> None:
    assert await code(cache, name) == "model_not_found"
    assert registry.queries == 0


async def test_entries_stay_while_postgres_is_away(registry: Registry, cache: ModelCache) -> None:
    text = f"m@{'a' * 12}"
    registry.found[text] = replace(MODEL, requested_name=text)
    await refresh(cache)
    await cache.find(text, CHAT, left_s=1)
    registry.is_away = True
    await refresh(cache)
    for name in ("m", text):
        assert (await cache.find(name, CHAT, left_s=1)).version == MODEL.version
    with pytest.raises(DatabaseUnavailableError):
        await cache.find("other", CHAT, left_s=1)


async def test_another_endpoint_is_refused(cache: ModelCache) -> None:
    await refresh(cache)
    with pytest.raises(ApiError) as refused:
        await cache.find("m", "/v1/embeddings", left_s=1)
    assert refused.value.code == "endpoint_not_supported"
