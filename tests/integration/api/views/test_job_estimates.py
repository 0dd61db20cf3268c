"""Goal: a batch tells when it ends and why its items wait, and says so when it cannot."""

import math
from typing import Any

import pytest
import sqlalchemy as sa

from api.runtime.database import DatabaseUnavailableError
from api.views.view_services import ViewServices, create_view_services
from core.clock import Clock
from core.ids import new_uuid
from jobs.estimates.pool_rates import PoolRates
from jobs.tables.retries import item_retries
from tests.integration.api.answers import ok
from tests.integration.api.sites import OpenSite, Site
from tests.integration.api.views.batches import RunningBatch, add_batch
from tests.support.capacity_records import capacity_record
from topics.records.codec import decode
from topics.records.records import Capacity

KEYS = {"p50", "p90", "miss_probability", "queue_s", "reason"}


def rates_of(pool: str, items_per_s: float, now_s: float) -> PoolRates:
    """Return rates as after the last ten seconds of one replica."""
    record = capacity_record(items_per_s=items_per_s, pool=pool)
    report = decode(Capacity, record.value, record.headers)
    rates = PoolRates()
    for second in range(11):
        rates.add_sample([report], now_s=now_s - 10 + second)
    return rates


@pytest.fixture
def pool() -> str:
    return f"pool-{new_uuid().hex}"


def opened(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch, pool: str, items_per_s: float = 10.0
) -> Site:
    def with_rates(
        services: Any, kafka: Any, _: PoolRates, clock: Clock, *further: Any
    ) -> ViewServices:
        rates = rates_of(pool, items_per_s, clock.monotonic_s())
        return create_view_services(services, kafka, rates, clock, *further)

    monkeypatch.setattr("api.app.create_view_services", with_rates)
    return open_site()


def shown(site: Site, batch: RunningBatch) -> dict[str, Any]:
    with site.client() as client:
        found: dict[str, Any] = ok(client.get(batch.path))["millrace"]
    return found


def test_a_running_batch_has_an_end_and_reasons(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    site = opened(open_site, monkeypatch, pool)
    batch = add_batch(site, 1000, pool=pool)
    batch.emit(400)
    with site.engine.begin() as connection:
        now_s = connection.scalar(sa.text("SELECT extract(epoch FROM now())::float8")) or math.nan
        retry = {"job_id": batch.job_id, "item_index": 5, "attempt": 2, "due_at": sa.func.now()}
        connection.execute(item_retries.insert().values(**retry))
    found = shown(site, batch)

    eta = found["eta"]
    assert eta.keys() == KEYS
    assert eta["reason"] is None
    assert now_s + 85 <= eta["p50"] <= now_s + 140  # 1,000 items at 10 in a second
    assert eta["p50"] < eta["p90"] < now_s + 200
    assert eta["miss_probability"] == 0.0  # its window is a day
    assert eta["queue_s"] == 0.0
    assert found["waiting"] == {"window": 600, "fair_turn": 399, "backoff": 1}
    with site.client() as client:
        (listed,) = ok(client.get("/v1/batches"))["data"]
        items = ok(client.get(f"{batch.path}/items?status=pending&limit=1"))["data"]
    assert (listed["millrace"]["eta"], listed["millrace"]["waiting"]) == (None, None)
    assert [item["waiting_reason"] for item in items] == ["window"]


@pytest.mark.parametrize(
    ("columns", "reason", "waiting"),
    [
        ({"paused_at": sa.func.now()}, "paused", {"paused": 8}),
        ({"quarantined_until": sa.text("now() + interval '1 hour'")}, "quarantine", None),
        ({"pool": "pool-without-replica"}, "no_replica", {"no_replica": 8}),
        ({"sealed": False, "total_final": False}, "not_sealed", {"fair_turn": 8}),
        ({"total_final": False}, "validating", {"fair_turn": 8}),
    ],
)
def test_a_batch_without_an_end_says_why(
    open_site: OpenSite,
    monkeypatch: pytest.MonkeyPatch,
    pool: str,
    columns: dict[str, Any],
    reason: str,
    waiting: dict[str, int] | None,
) -> None:
    site = opened(open_site, monkeypatch, pool)
    found = shown(site, add_batch(site, 8, **({"pool": pool} | columns)))
    assert found["eta"]["reason"] == reason
    assert found["eta"]["p50"] is found["eta"]["p90"] is found["eta"]["miss_probability"] is None
    assert found["waiting"] == (waiting or {reason: 8})


def test_an_end_is_not_guessed_without_a_rate(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    site = opened(open_site, monkeypatch, pool, items_per_s=0.0)
    assert shown(site, add_batch(site, 8, pool=pool))["eta"]["reason"] == "rate_unknown"


def test_a_batch_that_has_ended_waits_for_nothing(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    site = opened(open_site, monkeypatch, pool)
    found = shown(site, add_batch(site, 8, pool=pool, settled_at=sa.func.now()))
    assert (found["eta"], found["waiting"]) == (None, None)


@pytest.mark.parametrize("failure", [DatabaseUnavailableError(), TypeError("a bug")])
def test_a_failed_estimate_leaves_the_answers_intact(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch, pool: str, failure: Exception
) -> None:
    def failing(_: sa.Connection) -> None:
        raise failure

    monkeypatch.setattr("api.views.job_estimates.find_pool_sums", failing)
    site = opened(open_site, monkeypatch, pool)
    batch = add_batch(site, 8, pool=pool)
    with site.client() as client:
        found = ok(client.get(batch.path))
        items = ok(client.get(f"{batch.path}/items"))["data"]
        one = ok(client.get(f"{batch.path}/items/{items[0]['id']}"))
    assert found["status"] == "in_progress"
    assert (found["millrace"]["eta"], found["millrace"]["waiting"]) == (None, None)
    assert [item["waiting_reason"] for item in items] == [None] * 8
    assert one["waiting_reason"] is None
