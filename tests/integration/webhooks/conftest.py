"""A database, a tenant, and one process of the role, with waits a thousand times shorter."""

import asyncio
import os
import random
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.ids import new_uuid
from results.webhooks.delivery.attempt_recording import AttemptRecorder
from results.webhooks.delivery.claiming import ClaimLimits, WebhookDelivery, claim_deliveries
from results.webhooks.delivery.deliverer import Deliverer
from results.webhooks.delivery.http_sender import HttpSender
from results.webhooks.endpoints.address_policy import address_policy
from results.webhooks.endpoints.callbacks import Callback, add_callback
from results.webhooks.endpoints.endpoints import EndpointChange, create_endpoint
from results.webhooks.endpoints.name_resolution import DnsLookups, Resolver
from results.webhooks.endpoints.receiver_urls import parse_url
from results.webhooks.endpoints.signing_secrets import SecretCipher
from results.webhooks.events.message_recording import find_subscriptions, record_messages
from results.webhooks.events.messages import TERMINAL_EVENTS, WebhookMessage, job_message
from results.webhooks.settings import WebhookSettings
from results.webhooks.tables import webhook_attempts, webhook_deliveries, webhook_endpoints
from tests.integration.jobs.rows import add_tenant
from tests.integration.results.outcomes import execute, fetch, scalars
from tests.integration.webhooks.receivers import Answer, Receiver, receiving

WAIT_S_MAX = 40.0
CIPHER = SecretCipher([b"k" * 32], os.urandom)
URL = "https://8.8.8.8/hook"


async def literal(host: str, _: int) -> list[str]:
    raise OSError(f"nothing is looked up here, not even {host}")


@dataclass(frozen=True)
class Site:
    """A tenant with endpoints."""

    engine: sa.Engine
    tenant_id: UUID

    def execute(self, *statements: sa.Executable) -> None:
        execute(self.engine, *statements)

    def scalars(self, query: sa.Executable) -> list[Any]:
        return scalars(self.engine, query)

    @property
    def now_s(self) -> float:
        return float(self.scalars(sa.text("SELECT extract(epoch FROM now())"))[0])

    def endpoint(self, url: str = URL) -> tuple[UUID, bytes]:
        """Add an endpoint for terminal events; return its id and secret."""
        with self.engine.begin() as connection:
            row, secret = create_endpoint(
                connection,
                self.tenant_id,
                EndpointChange("test", url, TERMINAL_EVENTS),
                CIPHER,
                endpoints_max=1000,
            )
        return row.id, secret

    def callback(self, job_id: UUID) -> UUID:
        """Add a callback for all events of a job; return its id."""
        callback = Callback(URL, parse_url(URL, allow_private=False))
        with self.engine.begin() as connection:
            return add_callback(connection, self.tenant_id, job_id, callback, CIPHER)

    def send(
        self, count: int = 1, event_type: str = "batch.completed", *, job_id: UUID | None = None
    ) -> list[WebhookMessage]:
        """Record messages at one moment, of one job or of one each."""
        now_s = self.now_s
        messages = [
            job_message((new_uuid(), event_type), self.tenant_id, job_id or new_uuid(), now_s)
            for _ in range(count)
        ]
        with self.engine.begin() as connection:
            subscriptions = find_subscriptions(
                connection, [self.tenant_id], [job_id] if job_id else []
            )
            record_messages(connection, messages, subscriptions)
        return messages

    def deliveries(self, endpoint_id: UUID) -> list[sa.Row[Any]]:
        query = sa.select(webhook_deliveries).where(webhook_deliveries.c.endpoint_id == endpoint_id)
        return fetch(self.engine, query)

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
        return fetch(self.engine, query)

    def row(self, endpoint_id: UUID) -> sa.Row[Any]:
        query = sa.select(webhook_endpoints).where(webhook_endpoints.c.id == endpoint_id)
        (row,) = fetch(self.engine, query)
        return row


@pytest.fixture
def site(engine: sa.Engine) -> Site:
    with engine.begin() as connection:
        return Site(engine, add_tenant(connection))


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


async def run_until(condition: Callable[[], bool], what: str, site: Site, **settings: Any) -> None:
    """Run one process of the role until `condition` holds."""
    async with delivering(new_deliverer(site.engine, fast_settings(**settings))):
        await until(condition, what)


async def deliver(site: Site, endpoint: UUID, **settings: Any) -> None:
    """Run one process of the role until the endpoint has every message."""
    await run_until(
        lambda: set(site.states(endpoint)) == {"delivered"}, "delivery", site, **settings
    )


@contextmanager
def receiving_messages(
    site: Site, answer: Answer, count: int = 1
) -> Iterator[tuple[Receiver, UUID, list[WebhookMessage]]]:
    """Run a receiver with an endpoint and messages for it."""
    with receiving(answer) as receiver:
        endpoint, _ = site.endpoint(receiver.url)
        yield receiver, endpoint, site.send(count)
