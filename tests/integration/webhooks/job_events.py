"""Builders of endpoints, jobs and events, and the messages recorded for them."""

import json
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from core.ids import new_uuid
from core.states import JobState
from results.webhooks.endpoints.endpoints import EndpointChange, create_endpoint
from results.webhooks.events.message_recording import record_events
from results.webhooks.events.messages import EVENT_TYPES
from results.webhooks.tables import webhook_messages
from storage.postgres.tenant_isolation import restrict_to_tenant
from tests.integration.jobs.rows import add_job
from tests.integration.webhooks.conftest import CIPHER, URL, Site
from topics.records.records import JobEvent


def add_endpoint(site: Site, *event_types: str) -> UUID:
    with site.engine.begin() as connection:
        restrict_to_tenant(connection, site.tenant_id)  # as the API does
        row, _ = create_endpoint(
            connection,
            site.tenant_id,
            EndpointChange("test", URL, event_types or EVENT_TYPES),
            CIPHER,
            endpoints_max=100,
        )
    endpoint_id: UUID = row.id
    return endpoint_id


def running_job(
    site: Site, total: int = 100, tenant_id: UUID | None = None, **columns: object
) -> UUID:
    columns |= {"state": "in_progress", "total_count": total}
    with site.engine.begin() as connection:
        return add_job(connection, tenant_id or site.tenant_id, **columns)


def event_of(site: Site, job_id: UUID, state: JobState, tenant_id: UUID | None = None) -> JobEvent:
    return JobEvent(
        event_id=new_uuid(),
        job_id=job_id,
        tenant_id=tenant_id or site.tenant_id,
        state=state.value,
        at_s=site.now_s,
    )


def record(site: Site, *events: JobEvent) -> int:
    with site.engine.begin() as connection:
        return record_events(connection, events)


def message_bodies(site: Site) -> list[dict[str, Any]]:
    """The bodies of all messages in the order of their creation."""
    query = sa.select(webhook_messages.c.body).order_by(webhook_messages.c.created_at)
    return [json.loads(body) for body in site.scalars(query)]
