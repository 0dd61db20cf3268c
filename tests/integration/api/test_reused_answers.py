"""Goal: a cached or replayed answer is the first one, names its version and is billed right."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from tenancy.response_cache import CacheHits, billable_hits, record_cache_hits, set_response_cache
from tenancy.tables import usage_ledger
from tests.integration.api.answers import ok
from tests.integration.api.online_site import ASK, ENDPOINT, Online, OpenOnline, add_version, opened
from tests.integration.api.pool import PlayedPool, answer_at_once
from tests.support.until import until, until_found
from topics.records.records import Chunk
from topics.settings import KafkaSettings


def test_a_hit_costs_nothing(online: Online) -> None:
    tenant_id, engine, client = online.site.tenant_id, online.site.engine, online.client
    with engine.begin() as connection:
        set_response_cache(connection, tenant_id, 60)
    certain = ASK | {"temperature": 0}
    until(lambda: client.post(ENDPOINT, json=certain).headers.get("x-millrace-cache") is not None)
    asked = len(online.pool.chunks)
    again = client.post(ENDPOINT, json=dict(reversed(certain.items())))
    assert ok(again) == {"asked": certain}
    assert again.headers["x-millrace-cache"] == "hit"
    assert again.headers["x-millrace-model-version"] == "org/online@7"
    assert len(online.pool.chunks) == asked
    assert "x-millrace-cache" not in client.post(ENDPOINT, json=ASK).headers

    def billed() -> list[tuple[object, ...]]:
        query = sa.select(
            usage_ledger.c.model_version, usage_ledger.c.item_count, usage_ledger.c.output_tokens
        ).where(usage_ledger.c.tenant_id == tenant_id)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query)]

    assert until_found(billed) == [("7", 1, 0)]


def test_hits_are_billed_once_at_shutdown(
    kafka: KafkaSettings, database_url: str, tmp_path: Path
) -> None:
    with opened(kafka, database_url, tmp_path) as online:
        tenant_id = online.site.tenant_id
        with online.site.engine.begin() as connection:
            set_response_cache(connection, tenant_id, 60)
        hits = 0
        while hits < 3:
            hits += online.call({"temperature": 0}).headers.get("x-millrace-cache") == "hit"

    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    mine = CacheHits(new_uuid(), "m", "1")
    bill = billable_hits({mine: 5})
    billed = sa.select(sa.func.sum(usage_ledger.c.item_count))
    for _ in range(2):
        with engine.begin() as connection:
            record_cache_hits(connection, bill)
    with engine.connect() as connection:
        ours = billed.where(
            usage_ledger.c.tenant_id == tenant_id, usage_ledger.c.output_tokens == 0
        )
        assert connection.scalar(ours) == 3
        assert connection.scalar(billed.where(usage_ledger.c.tenant_id == mine.tenant_id)) == 5


KEPT: dict[str, dict[str, Any]] = {
    "whole": {},
    "streamed": {"stream": True},
    "in the background": {"background": True},
    "accepted": {"n": 1},  # nobody answers it while its client waits
}


def answer(online: Online, name: str) -> httpx.Response:
    wait = {"Prefer": "wait=1"} if name == "accepted" else {}
    return online.call(KEPT[name], Idempotency_Key=name, **wait)


def replay(online: Online, name: str) -> httpx.Response | None:
    """Return the answer once it is kept: a 202 that ends a wait is so a moment after it is told."""
    again = answer(online, name)
    return again if "idempotent-replayed" in again.headers else None


def versions(found: httpx.Response) -> list[str]:
    return found.headers.get_list("x-millrace-model-version")


@pytest.mark.timeout(120)
def test_a_replay_names_the_version_that_answered(open_online: OpenOnline) -> None:

    online = open_online(routes_refresh_s=0.1)

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        assert chunk.job.call is not None
        if b'"n"' in chunk.items[0].body:
            return
        if chunk.job.call.durable:
            online.record(chunk)
        answer_at_once(pool, chunk)

    online.pool.script = script
    for name in KEPT:
        assert versions(answer(online, name)) == ["org/online@7"], name
    add_version(online.site, "8")
    until(lambda: versions(online.call()) == ["org/online@8"])
    for name in KEPT:
        again = until_found(lambda name=name: replay(online, name))  # type: ignore[misc]
        assert versions(again) == ["org/online@7"], name
