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
from results.webhooks.endpoints.callbacks import Callback, add_callback
from results.webhooks.endpoints.endpoints import (
    EndpointChange,
    EndpointNotFoundError,
    change_endpoint,
    create_endpoint,
    find_callback,
    find_endpoint,
    list_endpoints,
)
from results.webhooks.endpoints.receiver_urls import parse_url
from results.webhooks.events.message_recording import find_subscriptions, record_messages
from results.webhooks.events.messages import TERMINAL_EVENTS, job_message
from results.webhooks.tables import webhook_deliveries, webhook_endpoints, webhook_lanes
from tests.integration.jobs.rows import add_job
from tests.integration.webhooks.conftest import CIPHER, Site
from tests.integration.webhooks.test_claiming import rows_read

OLD, NEW = "https://8.8.8.8/hook", "https://9.9.9.9:8443/hook"


def job_with_callback(site: Site) -> tuple[UUID, UUID]:
    """Add a terminal batch with a callback; return both ids."""
    ended = {"state": "completed", "completed_at": sa.func.now(), "total_count": 1}
    with site.engine.begin() as connection:
        job_id = add_job(connection, site.tenant_id, **ended)
        callback = Callback(OLD, parse_url(OLD, allow_private=False))
        return job_id, add_callback(connection, site.tenant_id, job_id, callback, CIPHER)


def record_end(site: Site, job_id: UUID, event_type: str = "batch.completed") -> None:
    with site.engine.begin() as connection:
        now_s = float(connection.scalar(sa.text("SELECT extract(epoch FROM now())")) or 0)
        message = job_message((new_uuid(), event_type), site.tenant_id, job_id, now_s)
        record_messages(
            connection, [message], find_subscriptions(connection, [site.tenant_id], [job_id])
        )


def test_callback_with_a_new_url_moves_to_the_queue_of_its_host(site: Site) -> None:
    job_id, endpoint = job_with_callback(site)
    lanes = [f"c:{site.tenant_id.hex}:https://{host}" for host in ("8.8.8.8:443", "9.9.9.9:8443")]
    record_end(site, job_id)
    with site.engine.begin() as connection:
        connection.execute(
            webhook_lanes.insert(), [{"lane": lane, "failure_count": 9} for lane in lanes]
        )
        change_endpoint(connection, site.tenant_id, endpoint, EndpointChange(url=NEW))
    record_end(site, job_id, "batch.failed")

    assert site.row(endpoint).lane == lanes[1]
    assert [d.lane for d in site.deliveries(endpoint)] == [lanes[1]] * 2
    with site.engine.begin() as connection:  # others' callbacks still wait for the old host
        assert connection.scalars(sa.select(webhook_lanes.c.lane)).all() == lanes[:1]


def test_replay_of_a_moved_callback_uses_its_new_queue(site: Site) -> None:
    job_id, endpoint = job_with_callback(site)
    record_end(site, job_id)
    with site.engine.begin() as connection:
        connection.execute(sa.update(webhook_deliveries).values(state="exhausted"))
        change_endpoint(connection, site.tenant_id, endpoint, EndpointChange(url=NEW))
        assert replay_deliveries(connection, site.tenant_id, endpoint, Replay()).count == 1

    (delivery,) = site.deliveries(endpoint)
    assert (
        delivery.lane == site.row(endpoint).lane == f"c:{site.tenant_id.hex}:https://9.9.9.9:8443"
    )


def test_moving_and_disabling_a_callback_drops_its_deliveries(site: Site) -> None:
    job_id, endpoint = job_with_callback(site)
    record_end(site, job_id)
    with site.engine.begin() as connection:
        both = EndpointChange(url=NEW, enabled=False)
        change_endpoint(connection, site.tenant_id, endpoint, both)

    assert site.states(endpoint) == ["dropped"]


def test_endpoint_with_a_new_url_keeps_its_queue(site: Site) -> None:
    endpoint, _ = site.endpoint(OLD)
    site.send()
    with site.engine.begin() as connection:
        change_endpoint(connection, site.tenant_id, endpoint, EndpointChange(url=NEW))
    site.send()

    assert {d.lane for d in site.deliveries(endpoint)} == {f"e:{endpoint.hex}"}


def delete(site: Site, job_id: UUID, *, hours_ago: int) -> None:
    with site.engine.begin() as connection:
        delete_batch(connection, site.tenant_id, job_id, key_id=new_uuid())
        past = sa.text(f"now() - interval '{hours_ago} hours'")
        # Past the trigger that keeps a job's history.
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(deleted_at=past))


def test_callback_of_a_deleted_batch_is_hidden(site: Site) -> None:
    job_id, endpoint = job_with_callback(site)
    tenant_id, again = site.tenant_id, EndpointChange(enabled=True)
    with site.engine.begin() as connection:
        assert find_callback(connection, tenant_id, job_id).url == OLD
    delete(site, job_id, hours_ago=0)

    with site.engine.begin() as connection:
        with pytest.raises(EndpointNotFoundError):
            find_callback(connection, tenant_id, job_id)
        with pytest.raises(EndpointNotFoundError):
            find_endpoint(connection, tenant_id, endpoint)
        with pytest.raises(EndpointNotFoundError):
            change_endpoint(connection, tenant_id, endpoint, again)
    record_end(site, job_id)  # the terminal event may be read after the deletion
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
    record_end(site, job_id)
    with site.engine.begin() as connection:
        connection.execute(sa.update(webhook_deliveries).values(state=state))
    delete(site, job_id, hours_ago=hours_ago)
    MessageRemoval(site.engine, 30).run_once()

    with site.engine.begin() as connection:
        left = set(connection.scalars(sa.select(webhook_endpoints.c.id)))
    assert left == ({endpoint, other} if is_kept else {other})


def test_lists_and_events_read_no_foreign_callbacks(site: Site) -> None:
    endpoint, _ = site.endpoint(OLD)
    fill = sa.text(
        "INSERT INTO webhook_endpoints (id, tenant_id, job_id, name, url, event_types, lane) "
        "SELECT gen_random_uuid(), :tenant, gen_random_uuid(), 'callback', 'x', '{}', 'c:x' "
        "FROM generate_series(1, 5000)"
    ).bindparams(sa.bindparam("tenant", type_=sa.Uuid))
    with site.engine.begin() as connection:
        connection.execute(fill, {"tenant": site.tenant_id})
    with site.engine.begin() as connection:
        connection.execute(sa.text("ANALYZE webhook_endpoints"))
    said: list[tuple[str, Any]] = []

    def record_statement(
        _c: object, _cursor: object, statement: str, given: Any, *_: object
    ) -> None:
        if statement.startswith("SELECT") and "FROM webhook_endpoints" in statement:
            said.append((statement, given))

    new = EndpointChange("test", OLD, TERMINAL_EVENTS)
    with site.engine.begin() as connection:
        sa.event.listen(connection, "before_cursor_execute", record_statement)
        assert [x.endpoint_id for x in find_subscriptions(connection, [site.tenant_id], [])] == [
            endpoint
        ]
        cursor = PageCursor(limit=10, after=None)
        assert [r.id for r in list_endpoints(connection, site.tenant_id, cursor).rows] == [endpoint]
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
    endpoint, _ = site.endpoint(OLD)
    site.send(5)  # in one transaction: all of one moment
    with site.engine.begin() as connection:
        connection.execute(sa.update(webhook_deliveries).values(state="exhausted"))
    with site.engine.begin() as connection:
        first = replay_deliveries(connection, site.tenant_id, endpoint, Replay(failed_only=True))

    assert first.count == 3
    assert site.states(endpoint) == ["exhausted"] * 2 + ["pending"] * 3

    behind = Replay(failed_only=True, after=first.last_id)
    with site.engine.begin() as connection:
        assert replay_deliveries(connection, site.tenant_id, endpoint, behind) == ReplayResult(
            2, None
        )
    assert site.states(endpoint) == ["pending"] * 5


def test_replay_continues_only_after_a_message_of_the_endpoint(site: Site) -> None:
    endpoint, _ = site.endpoint(OLD)
    with site.engine.begin() as connection, pytest.raises(InvalidFieldError):
        replay_deliveries(connection, site.tenant_id, endpoint, Replay(after=new_uuid()))
