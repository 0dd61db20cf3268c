"""Goal: failures of this process cost a receiver neither a message nor a duplicate."""

import asyncio
import errno
import random
from dataclasses import dataclass
from uuid import UUID

import pytest
import sqlalchemy as sa
from openai import OpenAI

from core.webhook_signatures import secret_text
from results.webhooks.delivery import attempt_recording
from results.webhooks.delivery.attempt_recording import AttemptRecorder, DeliveryAttempt
from results.webhooks.delivery.claiming import WebhookDelivery
from results.webhooks.endpoints.endpoints import rotate_secret
from results.webhooks.tables import webhook_endpoints
from tests.integration.webhooks.conftest import (
    CIPHER,
    Site,
    deliver,
    delivering,
    fast_settings,
    new_deliverer,
    receiving_messages,
    until,
)
from tests.integration.webhooks.receivers import ok, receiving

WEBHOOKS = OpenAI(api_key="none").webhooks


def spoil(site: Site, column: str) -> None:
    """Make a secret undecryptable, as after the loss of a key."""
    site.execute(sa.update(webhook_endpoints).values({column: b"\x01" + b"x" * 80}))


def rotated(site: Site, endpoint: UUID) -> str:
    with site.engine.begin() as connection:
        _, secret = rotate_secret(connection, site.tenant_id, endpoint, CIPHER, keep_old=True)
    return secret_text(secret)


async def test_unreadable_secret_is_a_recorded_failure(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving_messages(site, ok) as (receiver, endpoint, _):
        spoil(site, "sealed_secret")
        async with delivering(new_deliverer(site.engine, fast_settings())):
            await until(lambda: len(site.attempts(endpoint)) >= 2, "tries")
            secret = rotated(site, endpoint)
            await until(lambda: site.states(endpoint) == ["delivered"], "delivery")

    (request,) = receiver.requests  # nothing was sent without a signature
    WEBHOOKS.verify_signature(request.body, request.headers, secret=secret)
    codes = [attempt.error_code for attempt in site.attempts(endpoint)]
    assert set(codes[:-1]) == {"secret_unreadable"}
    assert codes[-1] is None
    logged = [vars(r) for r in caplog.records if r.message == "webhook_secret_unreadable"]
    assert {entry["endpoint"] for entry in logged} == {endpoint}
    assert [entry["is_old"] for entry in logged] == [False] * (len(codes) - 1) + [True]


async def test_unreadable_old_secret_does_not_prevent_signing(site: Site) -> None:
    with receiving_messages(site, ok) as (receiver, endpoint, _):
        secret = rotated(site, endpoint)
        spoil(site, "sealed_old_secret")
        await deliver(site, endpoint)

    (request,) = receiver.requests
    WEBHOOKS.verify_signature(request.body, request.headers, secret=secret)
    assert len(site.attempts(endpoint)) == 1


async def test_missing_open_files_postpone_deliveries(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_recording, "_POSTPONED_S", 0.05)
    asked = []

    async def resolve(_host: str, _port: int) -> list[str]:
        asked.append(1)
        if len(asked) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return ["127.0.0.1"]

    with receiving(ok) as receiver:
        endpoint, _ = site.endpoint(f"http://good.example.com:{receiver.port}/")
        site.send()
        async with delivering(new_deliverer(site.engine, fast_settings(), resolve=resolve)):
            await until(lambda: site.states(endpoint) == ["delivered"], "delivery")

    (delivery,) = site.deliveries(endpoint)
    assert (len(asked), delivery.failure_count) == (3, 0)
    assert [a.error_code for a in site.attempts(endpoint)] == [None]


@dataclass
class FlakyRecorder:
    """A database that fails before or after the commit of an attempt."""

    recorder: AttemptRecorder
    left: int
    is_late: bool

    def record(
        self, connection: sa.Connection, delivery: WebhookDelivery, attempt: DeliveryAttempt
    ) -> str | None:
        if self.left == 0:
            return self.recorder.record(connection, delivery, attempt)
        self.left -= 1
        if self.is_late:
            self.recorder.record(connection, delivery, attempt)
            connection.commit()
        raise sa.exc.OperationalError("COMMIT", None, Exception("away"))


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after the commit"])
async def test_recording_is_repeated_without_sending_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    monkeypatch.setattr("results.webhooks.delivery.deliverer._RECORD_PAUSE_S", 0.05)
    recorder = FlakyRecorder(AttemptRecorder(fast_settings(), random.random), 3, is_late)
    with receiving_messages(site, ok) as (receiver, endpoint, _):
        deliverer = new_deliverer(site.engine, fast_settings())
        deliverer.recorder = recorder  # type: ignore[assignment]
        async with delivering(deliverer):
            await until(lambda: site.states(endpoint) == ["delivered"], "delivery")
            await asyncio.to_thread(site.send)
            await until(lambda: site.states(endpoint) == ["delivered"] * 2, "the next one")

    assert len(receiver.requests) == 2
    assert [a.number for a in site.attempts(endpoint)] == [1, 1]
