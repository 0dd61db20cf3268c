"""Goal: a callback follows its URL and its batch, and callbacks do not slow down lists."""

from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from jobs.errors import InvalidFieldError
from jobs.store.keyset_pages import PageCursor
from jobs.tables.jobs import jobs
from results.retention.deletion import delete_batch
from results.webhooks.delivery.delivery_history import Replay, ReplayResult, replay_deliveries
from results.webhooks.delivery.message_removal import MessageRemoval
from results.webhooks.endpoints.endpoints import (
    EndpointChange,
    EndpointNotFoundError,
    change_endpoint,
    create_endpoint,
    find_callback,
    find_endpoint,
    list_endpoints,
)
from results.webhooks.events.message_recording import find_subscriptions
from results.webhooks.events.messages import TERMINAL_EVENTS
from results.webhooks.tables import webhook_deliveries, webhook_endpoints, webhook_lanes
from tests.integration.jobs.rows import add_job
from tests.integration.results.outcomes import days_ago
from tests.integration.webhooks.conftest import CIPHER, URL, Site
from tests.integration.webhooks.test_claims_and_attempts import rows_read

NEW = "https://9.9.9.9:8443/hook"


def job_with_callback(site: Site) -> tuple[UUID, UUID]:
    """Add a terminal batch with a callback; return both ids."""
    ended = {"state": "completed", "completed_at": sa.func.now(), "total_count": 1}
    with site.engine.begin() as connection:
        job_id = add_job(connection, site.tenant_id, **ended)
    return job_id, site.callback(job_id)


def change(site: Site, endpoint: UUID, **fields: Any) -> None:
    with site.engine.begin() as connection:
        change_endpoint(connection, site.tenant_id, endpoint, EndpointChange(**fields))


def replay(site: Site, endpoint: UUID, **fields: Any) -> ReplayResult:
    with site.engine.begin() as connection:
        return replay_deliveries(connection, site.tenant_id, endpoint, Replay(**fields))


def test_callback_with_a_new_url_moves_to_the_queue_of_its_host(site: Site) -> None:
    job_id, endpoint = job_with_callback(site)
    lanes = [f"c:{site.tenant_id.hex}:https://{host}" for host in ("8.8.8.8:443", "9.9.9.9:8443")]
    site.send(job_id=job_id)
    site.execute(
        webhook_lanes.insert().values([{"lane": lane, "failure_count": 9} for lane in lanes])
    )
    change(site, endpoint, url=NEW)
    site.send(event_type="batch.failed", job_id=job_id)

    assert site.row(endpoint).lane == lanes[1]
    assert [d.lane for d in site.deliveries(endpoint)] == [lanes[1]] * 2
    # Others' callbacks still wait for the old host.
    assert site.scalars(sa.select(webhook_lanes.c.lane)) == lanes[:1]


def test_replay_of_a_moved_callback_uses_its_new_queue(site: Site) -> None:
    job_id, endpoint = job_with_callback(site)
    site.send(job_id=job_id)
    site.execute(sa.update(webhook_deliveries).values(state="exhausted"))
    change(site, endpoint, url=NEW)
    assert replay(site, endpoint).count == 1

    (delivery,) = site.deliveries(endpoint)
    lane = f"c:{site.tenant_id.hex}:https://9.9.9.9:8443"
    assert delivery.lane == site.row(endpoint).lane == lane


def test_moving_and_disabling_a_callback_drops_its_deliveries(site: Site) -> None:
    job_id, endpoint = job_with_callback(site)
    site.send(job_id=job_id)
    change(site, endpoint, url=NEW, enabled=False)

    assert site.states(endpoint) == ["dropped"]


def test_endpoint_with_a_new_url_keeps_its_queue(site: Site) -> None:
    endpoint, _ = site.endpoint()
    site.send()
    change(site, endpoint, url=NEW)
    site.send()

    assert {d.lane for d in site.deliveries(endpoint)} == {f"e:{endpoint.hex}"}


def delete(site: Site, job_id: UUID, *, hours_ago: int) -> None:
    with site.engine.begin() as connection:
        delete_batch(connection, site.tenant_id, job_id, key_id=new_uuid())
    past = sa.update(jobs).where(jobs.c.id == job_id).values(deleted_at=days_ago(hours_ago / 24))
    # Past the trigger that keeps a job's history.
    site.execute(sa.text("SET LOCAL session_replication_role = replica"), past)


def test_callback_of_a_deleted_batch_is_hidden(site: Site) -> None:
    job_id, endpoint = job_with_callback(site)
    tenant_id, again = site.tenant_id, EndpointChange(enabled=True)
    with site.engine.begin() as connection:
        assert find_callback(connection, tenant_id, job_id).url == URL
    delete(site, job_id, hours_ago=0)

    with site.engine.begin() as connection:
        with pytest.raises(EndpointNotFoundError):
            find_callback(connection, tenant_id, job_id)
        with pytest.raises(EndpointNotFoundError):
            find_endpoint(connection, tenant_id, endpoint)
        with pytest.raises(EndpointNotFoundError):
            change_endpoint(connection, tenant_id, endpoint, again)
    site.send(job_id=job_id)  # the terminal event may be read after the deletion
    assert site.states(endpoint) == ["pending"]


@pytest.mark.parametrize(
    ("hours_ago", "state", "is_kept"),
    [(23, "delivered", True), (25, "pending", True), (25, "delivered", False)],
)
def test_callback_of_a_deleted_batch_is_removed_after_its_delivery(
    site: Site, hours_ago: int, state: str, is_kept: bool
) -> None:
    job_id, endpoint = job_with_callback(site)
    _, other = job_with_callback(site)
    site.send(job_id=job_id)
    site.execute(sa.update(webhook_deliveries).values(state=state))
    delete(site, job_id, hours_ago=hours_ago)
    MessageRemoval(site.engine, 30).run_once()

    left = set(site.scalars(sa.select(webhook_endpoints.c.id)))
    assert left == ({endpoint, other} if is_kept else {other})


def test_lists_and_events_read_no_foreign_callbacks(site: Site) -> None:
    endpoint, _ = site.endpoint()
    fill = sa.text(
        "INSERT INTO webhook_endpoints (id, tenant_id, job_id, name, url, event_types, lane) "
        "SELECT gen_random_uuid(), :tenant, gen_random_uuid(), 'callback', 'x', '{}', 'c:x' "
        "FROM generate_series(1, 5000)"
    ).bindparams(tenant=site.tenant_id)
    site.execute(fill, sa.text("ANALYZE webhook_endpoints"))
    said: list[tuple[str, Any]] = []

    def record_statement(
        _c: object, _cursor: object, statement: str, given: Any, *_: object
    ) -> None:
        if statement.startswith("SELECT") and "FROM webhook_endpoints" in statement:
            said.append((statement, given))

    new = EndpointChange("test", URL, TERMINAL_EVENTS)
    with site.engine.begin() as connection:
        sa.event.listen(connection, "before_cursor_execute", record_statement)
        found = find_subscriptions(connection, [site.tenant_id], [])
        assert [one.endpoint_id for one in found] == [endpoint]
        listed = list_endpoints(connection, site.tenant_id, PageCursor(limit=10, after=None))
        assert [row.id for row in listed.rows] == [endpoint]
        create_endpoint(connection, site.tenant_id, new, CIPHER, endpoints_max=2)
        sa.event.remove(connection, "before_cursor_execute", record_statement)
        assert len(said) >= 4
        for statement, given in said:
            plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", given)
            assert rows_read(plan.scalar_one()[0]["Plan"]) < 20, statement


def test_replay_continues_after_its_last_message(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.webhooks.delivery.delivery_history.REPLAYS_MAX", 3)
    endpoint, _ = site.endpoint()
    site.send(5)  # in one transaction: all of one moment
    site.execute(sa.update(webhook_deliveries).values(state="exhausted"))
    first = replay(site, endpoint, failed_only=True)

    assert first.count == 3
    assert site.states(endpoint) == ["exhausted"] * 2 + ["pending"] * 3
    rest = replay(site, endpoint, failed_only=True, after=first.last_id)
    assert rest == ReplayResult(2, None)
    assert site.states(endpoint) == ["pending"] * 5


def test_replay_continues_only_after_a_message_of_the_endpoint(site: Site) -> None:
    endpoint, _ = site.endpoint()
    with pytest.raises(InvalidFieldError):
        replay(site, endpoint, after=new_uuid())
