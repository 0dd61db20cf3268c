"""Goal: a claim costs as much as what is due; an attempt is recorded once, and many disable."""

from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from results.webhooks.delivery import claiming
from results.webhooks.delivery.attempt_recording import AttemptRecorder, DeliveryAttempt
from results.webhooks.delivery.claiming import DUE, MARK_DUE, WebhookDelivery
from results.webhooks.delivery.message_removal import MessageRemoval
from results.webhooks.delivery.retry_schedule import DeliveryFailure
from results.webhooks.settings import WebhookSettings
from results.webhooks.tables import (
    webhook_deliveries,
    webhook_endpoints,
    webhook_lanes,
    webhook_messages,
)
from tests.integration.jobs.rows import add_job
from tests.integration.results.outcomes import days_ago, fetch
from tests.integration.webhooks.conftest import Site

LANES = 3000


def add_waiting(site: Site, endpoint: UUID, *, due_in_s: int) -> None:
    """Failed deliveries, one per queue, due at intervals of a second."""
    fill = """
        WITH messages AS (
            INSERT INTO webhook_messages (id, tenant_id, event_type, body)
            SELECT gen_random_uuid(), :tenant, 'batch.completed', '{}'
            FROM generate_series(1, :lanes)
            RETURNING id
        )
        INSERT INTO webhook_deliveries (message_id, endpoint_id, tenant_id, lane, failure_count,
            next_try_at, is_due)
        SELECT id, :endpoint, :tenant, 'c:' || row_number() OVER (), 1,
            now() + (:due_in_s + row_number() OVER ()) * interval '1 s', false
        FROM messages
    """
    given = {"tenant": site.tenant_id, "endpoint": endpoint, "lanes": LANES, "due_in_s": due_in_s}
    site.execute(sa.text(fill).bindparams(**given), sa.text("ANALYZE webhook_deliveries"))


def rows_read(node: dict[str, Any]) -> int:
    """The number of rows that the leaves of a plan read."""
    if "Plans" in node:
        return sum(rows_read(below) for below in node["Plans"])
    read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(read * node["Actual Loops"])


def test_claim_reads_only_due_queues(site: Site) -> None:
    endpoint, _ = site.endpoint()
    add_waiting(site, endpoint, due_in_s=3600)
    site.send(2)
    with site.engine.connect() as connection:
        for statement, given in ((MARK_DUE, {"limit": 1000}), (DUE, {"lane_max": 4})):
            explain = sa.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
            found = connection.execute(explain, given).scalar_one()
            assert rows_read(found[0]["Plan"]) < 20

    deliveries, is_more = site.claimed_and_more(LANES)
    assert [d.lane for d in deliveries] == [f"e:{endpoint.hex}"]
    assert not is_more


def test_claims_return_every_due_delivery(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "_MARKED_MAX", 1200)
    endpoint, _ = site.endpoint()
    add_waiting(site, endpoint, due_in_s=-3600)
    turns = [site.claimed_and_more(LANES) for _ in range(3)]

    assert [(len(deliveries), is_more) for deliveries, is_more in turns] == [
        (1200, True),
        (1200, True),
        (600, False),
    ]
    assert {d.lane for d in turns[0][0]} == {f"c:{n}" for n in range(1, 1201)}


def test_item_failures_of_a_deleted_batch_are_dropped(site: Site) -> None:
    site.endpoint()
    heard = ["item.failed", "batch.completed"]
    site.execute(sa.update(webhook_endpoints).values(event_types=heard))
    named, ended = site.send(event_type="item.failed") + site.send()
    with site.engine.begin() as connection:
        past = {"state": "completed", "completed_at": sa.func.now(), "deleted_at": sa.func.now()}
        job_id = add_job(connection, site.tenant_id, total_count=1, **past)
    site.execute(sa.update(webhook_messages).values(job_id=job_id))
    turns = [site.claimed_and_more(LANES) for _ in range(2)]

    assert [([d.message_id for d in deliveries], is_more) for deliveries, is_more in turns] == [
        ([], True),
        ([ended.message_id], False),
    ]
    query = sa.select(webhook_deliveries.c.message_id).where(
        webhook_deliveries.c.state == "dropped"
    )
    assert site.scalars(query) == [named.message_id]


def test_claim_waits_for_no_row_lock(site: Site) -> None:
    endpoints = [site.endpoint()[0] for _ in range(2)]
    site.send()
    held = sa.select(webhook_deliveries).where(webhook_deliveries.c.endpoint_id == endpoints[0])
    with site.engine.connect() as other:
        other.execute(held.with_for_update())
        assert [d.endpoint_id for d in site.claimed_and_more(LANES)[0]] == endpoints[1:]
    assert [d.endpoint_id for d in site.claimed_and_more(LANES)[0]] == endpoints[:1]


UNWELL = DeliveryAttempt(0.0, 0.1, DeliveryFailure(503), 503, "5xx")
WELL = DeliveryAttempt(0.0, 0.1, None, 200, None)
SETTLER = AttemptRecorder(WebhookSettings(), lambda: 0.5)


def claimed(site: Site) -> WebhookDelivery:
    (delivery,) = site.claimed()
    return delivery


def settled(site: Site, delivery: WebhookDelivery, attempt: DeliveryAttempt = UNWELL) -> str | None:
    with site.engine.begin() as connection:
        return SETTLER.record(connection, delivery, attempt)


def lanes(site: Site) -> list[sa.Row[Any]]:
    return fetch(site.engine, sa.select(webhook_lanes))


def old_endpoint(site: Site) -> UUID:
    endpoint, _ = site.endpoint()
    site.execute(sa.update(webhook_endpoints).values(created_at=days_ago(9)))
    return endpoint


def add_failures(site: Site, lane: str, *, since_h: int, until_h: int) -> None:
    """Add a queue that has failed for some hours."""
    values = {"lane": lane, "failure_count": 40}
    times = {"failing_since": days_ago(since_h / 24), "last_failed_at": days_ago(until_h / 24)}
    site.execute(webhook_lanes.insert().values(values | times))


def test_failure_after_a_quiet_time_disables_nothing(site: Site) -> None:
    endpoint = old_endpoint(site)
    add_failures(site, f"e:{endpoint.hex}", since_h=144, until_h=66)
    site.send()

    assert settled(site, claimed(site)) == "pending"
    assert site.row(endpoint).disabled_at is None
    (lane,) = lanes(site)
    assert (lane.failure_count, lane.failing_since) == (1, lane.last_failed_at)


def test_continuous_failures_disable_the_endpoint(site: Site) -> None:
    endpoint = old_endpoint(site)
    add_failures(site, f"e:{endpoint.hex}", since_h=144, until_h=26)  # the longest wait
    site.send()
    settled(site, claimed(site))

    assert site.row(endpoint).disabled_reason == "failing"
    assert site.states(endpoint) == ["dropped"]


def test_new_callback_is_not_disabled_for_earlier_failures(site: Site) -> None:
    with site.engine.begin() as connection:
        job_id = add_job(connection, site.tenant_id)
    endpoint = site.callback(job_id)
    add_failures(site, site.row(endpoint).lane, since_h=144, until_h=1)
    site.execute(sa.update(webhook_endpoints).values(job_id=None))  # for `send`
    site.send()

    assert settled(site, claimed(site)) == "pending"
    assert site.row(endpoint).disabled_at is None
    assert [lane.failure_count for lane in lanes(site)] == [41]


@pytest.mark.parametrize("attempt", [WELL, UNWELL], ids=["well", "unwell"])
def test_repeated_recording_changes_nothing(site: Site, attempt: DeliveryAttempt) -> None:
    endpoint, _ = site.endpoint()
    site.send()
    delivery = claimed(site)
    state = settled(site, delivery, attempt)
    before = site.deliveries(endpoint), lanes(site)

    assert state == ("delivered" if attempt is WELL else "pending")
    assert settled(site, delivery, attempt) is None
    assert (site.deliveries(endpoint), lanes(site)) == before
    assert len(site.attempts(endpoint)) == 1


def test_quiet_queue_states_are_removed(site: Site) -> None:
    add_failures(site, "c:quiet", since_h=400, until_h=49)
    add_failures(site, "c:failing", since_h=400, until_h=47)
    MessageRemoval(site.engine, 30).run_once()

    assert [lane.lane for lane in lanes(site)] == ["c:failing"]
