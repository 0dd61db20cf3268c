"""Goal: expired rows are removed, however many there are and with concurrent processes."""

from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.store.keyset_pages import PageCursor
from results.webhooks.delivery.claiming import drop_waiting
from results.webhooks.delivery.delivery_history import create_test_delivery
from results.webhooks.delivery.message_removal import _REMOVE, MessageRemoval
from results.webhooks.endpoints.endpoints import (
    EndpointChange,
    EndpointNotFoundError,
    change_endpoint,
    create_endpoint,
    delete_endpoint,
    find_endpoint,
    list_endpoints,
)
from results.webhooks.events.messages import TERMINAL_EVENTS
from results.webhooks.tables import webhook_deliveries, webhook_endpoints, webhook_messages
from storage.postgres.tenant_isolation import restrict_to_tenant
from tests.integration.jobs.rows import add_job
from tests.integration.results.outcomes import count, days_ago
from tests.integration.webhooks.conftest import CIPHER, URL, Site

SLICE = "results.webhooks.delivery.message_removal._SLICE"


def old_messages(site: Site, number: int) -> None:
    """Add messages, the oldest first."""
    statement = sa.text(
        "INSERT INTO webhook_messages (id, tenant_id, event_type, body, created_at) "
        "SELECT gen_random_uuid(), :tenant, 'batch.completed', '{}', "
        "now() - interval '40 days' + n * interval '1 s' FROM generate_series(1, :number) n"
    )
    site.execute(statement.bindparams(tenant=site.tenant_id, number=number))


def kept(site: Site) -> int:
    return count(site.engine, webhook_messages)


def test_one_run_removes_all_expired_rows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLICE, 10)
    old_messages(site, 35)
    asked = []

    def is_over() -> bool:
        asked.append(kept(site))
        return len(asked) >= 3

    MessageRemoval(site.engine, 30, is_over).run_once()
    assert asked[:3] == [35, 25, 15]  # each slice was committed, and none was begun after the stop
    MessageRemoval(site.engine, 30).run_once()
    assert kept(site) == 0


def test_removal_skips_locked_rows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLICE, 10)
    old_messages(site, 25)
    oldest = sa.select(webhook_messages).order_by(webhook_messages.c.created_at).limit(10)
    with site.engine.connect() as other:
        other.execute(oldest.with_for_update())
        MessageRemoval(site.engine, 30).run_once()
        assert kept(site) == 10


def delete(site: Site, endpoint_id: UUID) -> None:
    with site.engine.begin() as connection:
        restrict_to_tenant(connection, site.tenant_id)  # as the API does
        delete_endpoint(connection, site.tenant_id, endpoint_id)


def test_deletion_hides_an_endpoint_without_touching_deliveries(site: Site) -> None:
    endpoint, _ = site.endpoint()
    site.send(3)
    with site.engine.connect() as delivering:  # as a try that writes how it ended
        delivering.execute(sa.select(webhook_deliveries).with_for_update())
        delete(site, endpoint)

    row = site.row(endpoint)
    assert (row.url, row.sealed_secret, row.disabled_reason) == ("", None, "deleted")
    assert len(site.deliveries(endpoint)) == 3
    with site.engine.begin() as connection:
        for look in (find_endpoint, delete_endpoint):
            with pytest.raises(EndpointNotFoundError):
                look(connection, site.tenant_id, endpoint)
        new = EndpointChange("test", URL, TERMINAL_EVENTS)
        made, _ = create_endpoint(connection, site.tenant_id, new, CIPHER, endpoints_max=1)
        page = list_endpoints(connection, site.tenant_id, PageCursor(limit=10))
    assert [shown.id for shown in page.rows] == [made.id]


def test_deleted_endpoint_gets_no_attempt(site: Site) -> None:
    endpoint, _ = site.endpoint()
    site.send(2)
    with site.engine.begin() as connection:
        create_test_delivery(connection, site.tenant_id, endpoint, "batch.completed")
    delete(site, endpoint)

    assert site.claimed() == []
    assert site.states(endpoint) == ["dropped"] * 3


def test_deleted_endpoint_is_removed_in_slices(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLICE, 10)
    endpoint, _ = site.endpoint()
    other, _ = site.endpoint()
    site.send(25)
    delete(site, endpoint)
    counts: list[int] = []

    def is_over() -> bool:
        counts.append(len(site.deliveries(endpoint)))
        return False

    MessageRemoval(site.engine, 30, is_over).run_once()

    assert {25, 15, 5, 0} == set(counts)
    assert len(site.deliveries(other)) == 25
    assert site.scalars(sa.select(webhook_endpoints.c.id)) == [other]


def test_disabling_drops_a_slice_and_claims_drop_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.webhooks.delivery.claiming.DROP_SLICE", 10)
    endpoint, _ = site.endpoint()
    site.send(36)
    with site.engine.connect() as delivering:  # one row is locked and skipped
        delivering.execute(sa.select(webhook_deliveries).limit(1).with_for_update())
        with site.engine.begin() as connection:
            restrict_to_tenant(connection, site.tenant_id)
            off = EndpointChange(enabled=False)
            change_endpoint(connection, site.tenant_id, endpoint, off)
    assert site.states(endpoint).count("dropped") == 10
    assert site.claimed() == []
    assert 20 < site.states(endpoint).count("dropped") < 30
    MessageRemoval(site.engine, 30).run_once()
    assert site.states(endpoint) == ["dropped"] * 36


def dropped(site: Site, endpoint: UUID) -> int:
    with site.engine.begin() as connection:
        connection.execute(sa.text("SET LOCAL lock_timeout = '2s'"))
        return drop_waiting(connection, endpoint)


def test_enabled_endpoint_keeps_its_deliveries(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dropping process may have read the disabled state before."""
    monkeypatch.setattr("results.webhooks.delivery.claiming.DROP_SLICE", 1)
    endpoint, _ = site.endpoint()
    site.send(3)
    for is_enabled in (False, True):
        with site.engine.begin() as owner:
            change_endpoint(owner, site.tenant_id, endpoint, EndpointChange(enabled=is_enabled))
            assert dropped(site, endpoint) == 0
    assert dropped(site, endpoint) == 0
    assert sorted(site.states(endpoint)) == ["dropped", "pending", "pending"]


@pytest.mark.parametrize(("hours", "is_kept"), [(23, True), (25, False)])
def test_callback_is_kept_for_a_day_after_its_job(site: Site, hours: int, is_kept: bool) -> None:
    """The terminal event may still be on the log, so there is no delivery yet."""
    ended = {"state": "completed", "total_count": 1, "completed_at": days_ago(hours / 24)}
    with site.engine.begin() as connection:
        job_id = add_job(connection, site.tenant_id, **ended)
    site.callback(job_id)
    site.execute(sa.update(webhook_endpoints).values(created_at=days_ago(31)))
    MessageRemoval(site.engine, 30).run_once()

    assert count(site.engine, webhook_endpoints) == is_kept


def test_callback_with_a_new_delivery_is_kept(site: Site) -> None:
    endpoint, _ = site.endpoint()
    site.send()
    site.execute(_REMOVE.bindparams(ids=[endpoint]))

    assert site.row(endpoint).url == URL
