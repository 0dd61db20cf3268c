"""A database, a tenant, and one process of the role, with waits a thousand times shorter."""

import asyncio
import os
import random
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from core.clock import SystemClock
from core.ids import new_uuid
from results.webhooks.delivery.attempt_recording import AttemptRecorder
from results.webhooks.delivery.claiming import ClaimLimits, WebhookDelivery, claim_deliveries
from results.webhooks.delivery.deliverer import Deliverer
from results.webhooks.delivery.http_sender import HttpSender
from results.webhooks.endpoints.address_policy import address_policy
from results.webhooks.endpoints.endpoints import EndpointChange, create_endpoint
from results.webhooks.endpoints.name_resolution import DnsLookups, Resolver
from results.webhooks.endpoints.signing_secrets import SecretCipher
from results.webhooks.events.message_recording import find_subscriptions, record_messages
from results.webhooks.events.messages import TERMINAL_EVENTS, WebhookMessage, job_message
from results.webhooks.settings import WebhookSettings
from results.webhooks.tables import webhook_attempts, webhook_deliveries, webhook_endpoints
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tests.integration.jobs.rows import add_tenant
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import SHARED_TOPICS
from topics.settings import KafkaSettings

WAIT_S_MAX = 40.0
CIPHER = SecretCipher([b"k" * 32], os.urandom)


async def literal(host: str, _: int) -> list[str]:
    raise OSError(f"nothing is looked up here, not even {host}")


@dataclass(frozen=True)
class Site:
    """A tenant with endpoints."""

    engine: sa.Engine
    tenant_id: UUID

    def endpoint(self, url: str, tenant_id: UUID | None = None) -> tuple[UUID, bytes]:
        """Add an endpoint for terminal events; return its id and secret."""
        with self.engine.begin() as connection:
            row, secret = create_endpoint(
                connection,
                tenant_id or self.tenant_id,
                EndpointChange("test", url, TERMINAL_EVENTS),
                CIPHER,
                endpoints_max=1000,
            )
        return row.id, secret

    def send(self, count: int = 1, event_type: str = "batch.completed") -> list[WebhookMessage]:
        """Record messages for every endpoint of the tenant."""
        with self.engine.begin() as connection:
            now_s = float(connection.scalar(sa.text("SELECT extract(epoch FROM now())")) or 0)
            messages = [
                job_message((new_uuid(), event_type), self.tenant_id, new_uuid(), now_s)
                for _ in range(count)
            ]
            record_messages(
                connection, messages, find_subscriptions(connection, [self.tenant_id], [])
            )
        return messages

    def deliveries(self, endpoint_id: UUID) -> list[sa.Row[Any]]:
        query = sa.select(webhook_deliveries).where(webhook_deliveries.c.endpoint_id == endpoint_id)
        with self.engine.begin() as connection:
            return list(connection.execute(query).all())

    def claimed(self, slots: int = 9) -> list[WebhookDelivery]:
        """Claim due deliveries of any queue."""
        return self.claimed_and_more(slots)[0]

    def claimed_and_more(self, slots: int = 9) -> tuple[list[WebhookDelivery], bool]:
        """Claim due deliveries of any queue; return also whether more may be due."""
        room = ClaimLimits(
            slots=slots,
            suspect_slots=slots,
            queue_slots_max=4,
            tenant_slots_max=slots,
            busy_tenants={},
            proven_queues=(),
        )
        with self.engine.begin() as connection:
            return claim_deliveries(connection, room, holder="test", lease_s=60)

    def states(self, endpoint_id: UUID) -> list[str]:
        return sorted(row.state for row in self.deliveries(endpoint_id))

    def attempts(self, endpoint_id: UUID) -> list[sa.Row[Any]]:
        query = (
            sa.select(webhook_attempts)
            .where(webhook_attempts.c.endpoint_id == endpoint_id)
            .order_by(webhook_attempts.c.started_at, webhook_attempts.c.number)
        )
        with self.engine.begin() as connection:
            return list(connection.execute(query).all())

    def row(self, endpoint_id: UUID) -> sa.Row[Any]:
        query = sa.select(webhook_endpoints).where(webhook_endpoints.c.id == endpoint_id)
        with self.engine.begin() as connection:
            return connection.execute(query).one()


@pytest.fixture
def database(database_url: str) -> DatabaseSettings:
    return DatabaseSettings(url=SecretStr(database_url))


@pytest.fixture
def engine(database: DatabaseSettings) -> Iterator[sa.Engine]:
    engine = create_engine(database, application_name="test")
    yield engine
    engine.dispose()


@pytest.fixture
def site(engine: sa.Engine) -> Site:
    with engine.begin() as connection:
        return Site(engine, add_tenant(connection))


@pytest.fixture
def kafka(kafka_bootstrap: str, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    TopicAdmin(settings).create(SHARED_TOPICS)
    return settings


def fast_settings(**given: object) -> WebhookSettings:
    """Hours are seconds, and private addresses are allowed. The attempt timeout is not scaled."""
    return WebhookSettings.model_validate(
        {
            "allow_private": True,
            "time_scale": 0.001,
            "timeout_s": 15.0,
            "look_interval_s": 0.05,
            "stop_grace_s": 0,
            **given,
        }
    )


def new_deliverer(
    engine: sa.Engine,
    settings: WebhookSettings,
    *,
    resolve: Resolver = literal,
    look_ups: DnsLookups | None = None,
    tls: ssl.SSLContext | None = None,
) -> Deliverer:
    poster = HttpSender(
        policy=address_policy(settings),
        tls=tls or ssl.create_default_context(),
        timeout_s=settings.timeout_s,
    )
    return Deliverer(
        engine=engine,
        dns=look_ups or DnsLookups(resolve, count_max=64),
        sender=poster,
        cipher=CIPHER,
        recorder=AttemptRecorder(settings, random.Random(1).random),
        settings=settings,
        clock=SystemClock(),
        holder=f"test-{new_uuid().hex[:8]}",
    )


@asynccontextmanager
async def delivering(deliverer: Deliverer) -> AsyncIterator[None]:
    """Run one process of the role for a block."""
    stop = threading.Event()
    running = asyncio.create_task(deliverer.run(stop))
    try:
        yield
    finally:
        stop.set()
        deliverer.wake()
        await running


async def until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S_MAX) -> None:
    """Poll until `condition` holds."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not await asyncio.to_thread(condition):
        assert loop.time() < deadline_s, f"waited {timeout_s:g} s for {what}"
        await asyncio.sleep(0.02)
