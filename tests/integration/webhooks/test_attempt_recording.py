"""Goal: an endpoint is disabled after continuous failures, and an attempt is recorded once."""

from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from results.webhooks.delivery.attempt_recording import AttemptRecorder, DeliveryAttempt
from results.webhooks.delivery.claiming import WebhookDelivery
from results.webhooks.delivery.message_removal import MessageRemoval
from results.webhooks.delivery.retry_schedule import DeliveryFailure
from results.webhooks.settings import WebhookSettings
from results.webhooks.tables import webhook_endpoints, webhook_lanes
from tests.integration.jobs.rows import add_job
from tests.integration.results.outcomes import days_ago, fetch
from tests.integration.webhooks.conftest import Site

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
