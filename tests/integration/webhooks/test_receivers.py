"""Goal: whatever a receiver does, a live one gets every message, and a hostile one gets nothing."""

import asyncio
import json
import socket
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from openai import OpenAI

from core.webhook_signatures import secret_text
from results.webhooks.delivery.delivery_history import create_test_delivery
from results.webhooks.delivery.http_sender import RESPONSE_BYTES_MAX
from results.webhooks.delivery.retry_schedule import DELAYS_S
from results.webhooks.endpoints.endpoints import EndpointChange, change_endpoint, rotate_secret
from results.webhooks.endpoints.name_resolution import DnsLookups
from results.webhooks.tables import webhook_endpoints
from tests.integration.jobs.rows import add_tenant
from tests.integration.webhooks.conftest import (
    CIPHER,
    Site,
    deliver,
    delivering,
    fast_settings,
    new_deliverer,
    receiving_messages,
    run_until,
    until,
)
from tests.integration.webhooks.receivers import (
    Answer,
    Flood,
    dripping_body,
    dripping_head,
    failing_first,
    garbage,
    ok,
    receiving,
    reset_before_the_answer,
    reset_in_the_answer,
    silent,
    status,
)

WEBHOOKS = OpenAI(api_key="none").webhooks


@pytest.mark.parametrize("event_type", ["batch.completed", "item.failed"])
async def test_delivered_message_is_accepted_by_the_official_client(
    site: Site, caplog: pytest.LogCaptureFixture, event_type: str
) -> None:
    with receiving(ok) as receiver:
        endpoint, secret = site.endpoint(receiver.url)
        site.execute(sa.update(webhook_endpoints).values(event_types=[event_type]))
        (message,) = site.send(event_type=event_type)
        # The grace lets the attempt finish its last log line, written after the row.
        async with delivering(new_deliverer(site.engine, fast_settings(stop_grace_s=15))):
            await until(lambda: site.states(endpoint) == ["delivered"], "delivery")

    (request,) = receiver.requests
    event: Any = WEBHOOKS.unwrap(request.body, request.headers, secret=secret_text(secret))
    assert event.type == event_type
    assert message.job_id is not None
    assert json.loads(request.body)["data"]["id"] == f"batch_{message.job_id.hex}"
    assert event.id == request.headers["webhook-id"]
    assert request.line == "POST /hook?a=b HTTP/1.1"
    assert request.headers["content-type"] == "application/json"
    (attempt,) = site.attempts(endpoint)
    assert (attempt.number, attempt.status_code, attempt.error_code) == (1, 200, None)
    (logged,) = (vars(record) for record in caplog.records if record.message == "tried")
    assert (logged["webhook"], logged["status"]) == (event.id, 200)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_both_secrets_verify_during_a_rotation(site: Site) -> None:
    with receiving(ok) as receiver:
        endpoint, old = site.endpoint(receiver.url)
        with site.engine.begin() as connection:
            _, new = rotate_secret(connection, site.tenant_id, endpoint, CIPHER, keep_old=True)
        site.send()
        async with delivering(new_deliverer(site.engine, fast_settings())):
            await until(lambda: len(receiver.requests) == 1, "delivery")
            with site.engine.begin() as connection:
                rotate_secret(connection, site.tenant_id, endpoint, CIPHER, keep_old=False)
            site.send()
            await until(lambda: len(receiver.requests) == 2, "another delivery")

    during, after = receiver.requests
    for secret in (old, new):
        WEBHOOKS.verify_signature(during.body, during.headers, secret=secret_text(secret))
        with pytest.raises(ValueError, match="signature"):
            WEBHOOKS.verify_signature(after.body, after.headers, secret=secret_text(secret))
    assert during.headers["webhook-signature"].count("v1,") == 2
    assert after.headers["webhook-signature"].count("v1,") == 1


async def test_recovered_receiver_gets_every_message_with_one_id(site: Site) -> None:
    with receiving_messages(site, failing_first(4)) as (receiver, endpoint, (message,)):
        await deliver(site, endpoint)

    assert receiver.ids == [f"evt_{message.message_id.hex}"] * 5
    assert [a.status_code for a in site.attempts(endpoint)] == [500, 500, 500, 500, 200]
    assert [a.error_code for a in site.attempts(endpoint)] == ["5xx"] * 4 + [None]


async def test_delivery_is_exhausted_after_the_schedule(site: Site) -> None:
    scale = 0.00001
    with receiving_messages(site, status(500)) as (receiver, endpoint, _):
        await run_until(
            lambda: site.states(endpoint) == ["exhausted"], "the last try", site, time_scale=scale
        )

    assert len(receiver.requests) == len(DELAYS_S)
    for (one, two), delay_s in zip(pairwise(receiver.requests), DELAYS_S[1:], strict=True):
        assert two.at_s - one.at_s >= 0.85 * delay_s * scale


async def test_redirect_is_a_failure_and_not_followed(site: Site) -> None:
    with receiving(ok) as target:
        location = f"Location: {target.url}"
        with receiving(status(301, location)) as receiver, receiving(status(307, location)) as two:
            endpoints = [site.endpoint(r.url)[0] for r in (receiver, two)]
            site.send()
            await run_until(
                lambda: min(map(len, map(site.attempts, endpoints))) >= 2, "tries", site
            )

    assert target.connections == 0
    assert {a.error_code for e in endpoints for a in site.attempts(e)} == {"3xx"}


async def test_410_disables_the_endpoint_and_drops_its_deliveries(site: Site) -> None:
    with receiving_messages(site, status(410), 20) as (receiver, endpoint, _):
        async with delivering(new_deliverer(site.engine, fast_settings())):
            await until(lambda: "pending" not in site.states(endpoint), "the end")
            site.send()

    assert site.row(endpoint).disabled_reason == "gone"
    assert set(site.states(endpoint)) <= {"exhausted", "dropped"}
    assert len(site.states(endpoint)) == 20
    assert len(receiver.requests) <= 8


@pytest.mark.parametrize("code", [429, 503])
async def test_retry_after_is_respected(site: Site, code: int) -> None:
    wait_s = 0.8

    def answer(connection: Any, number: int) -> None:
        (status(code, "Retry-After: 800") if number == 0 else ok)(connection, number)

    with receiving_messages(site, answer) as (receiver, endpoint, _):
        async with delivering(new_deliverer(site.engine, fast_settings())):
            await until(lambda: len(receiver.requests) == 1, "the first try")
            site.send()  # the queue is blocked
            await until(lambda: site.states(endpoint) == ["delivered"] * 2, "delivery")

    first, *others = receiver.requests
    assert min(other.at_s for other in others) - first.at_s >= wait_s - 0.05


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (silent, "timed_out"),
        (dripping_head, "timed_out"),
        (reset_before_the_answer, "disconnected"),
        (reset_in_the_answer, "disconnected"),
        (garbage, "not_http"),
        (Flood(b"HTTP/1.1 200 OK\r\nX-Long: "), "answer_too_large"),
        (status(101, "Upgrade: websocket", "Connection: Upgrade"), "timed_out"),
    ],
    ids=["silent", "dripping", "reset", "reset in the answer", "garbage", "endless head", "101"],
)
async def test_missing_response_is_a_failure(
    site: Site, request: pytest.FixtureRequest, answer: Answer, code: str
) -> None:
    settings = {"timeout_s": 1} if code == "timed_out" else {}
    with receiving_messages(site, answer) as (_, endpoint, _):
        await run_until(lambda: len(site.attempts(endpoint)) >= 2, "tries", site, **settings)

    found = {a.error_code for a in site.attempts(endpoint)}
    # Bytes after a 101 may arrive before the connection is closed and be read as a response.
    assert found <= ({code, "not_http"} if request.node.callspec.id == "101" else {code})
    assert {a.status_code for a in site.attempts(endpoint)} == {None}


@pytest.mark.parametrize(
    "answer", [dripping_body, Flood(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")]
)
async def test_response_head_counts_and_its_body_is_bounded(site: Site, answer: Answer) -> None:
    with receiving_messages(site, answer) as (receiver, endpoint, _):
        await deliver(site, endpoint)

    assert len(receiver.requests) == 1
    if isinstance(answer, Flood):  # what we read, and what buffers between hold
        assert answer.sent_bytes < RESPONSE_BYTES_MAX + 6 * 2**20


async def test_slow_receivers_delay_no_other(site: Site) -> None:
    """Half of the endpoints hang; the others are called before the first of these times out."""
    with receiving(silent) as slow, receiving(ok) as good:
        for _ in range(20):
            site.endpoint(slow.url)
        live = [site.endpoint(good.url)[0] for _ in range(20)]
        site.send(5)
        await run_until(
            lambda: {state for e in live for state in site.states(e)} == {"delivered"},
            "the good ones",
            site,
            slots_max=64,
            timeout_s=60.0,
        )

    assert len(good.requests) == 100


async def test_hanging_look_ups_delay_no_other_tenant(site: Site) -> None:
    answered = asyncio.Event()

    async def resolve(host: str, _: int) -> list[str]:
        if host == "hanging.example.com":
            await answered.wait()
        return ["127.0.0.1"]

    with site.engine.begin() as connection:
        stranger = Site(site.engine, add_tenant(connection))
    hanging = [site.endpoint("http://hanging.example.com/")[0] for _ in range(4)]
    one_each = DnsLookups(resolve, count_max=8, wait_s=0.1)
    limits = fast_settings(timeout_s=0.5)
    with receiving(ok) as receiver:
        good, _ = stranger.endpoint(f"http://good.example.com:{receiver.port}/")
        async with delivering(new_deliverer(site.engine, limits, look_ups=one_each)):
            site.send()
            stranger.send()
            await until(lambda: stranger.states(good) == ["delivered"], "the other tenant's")
            await until(
                lambda: all(
                    d.try_count and d.claimed_by is None
                    for e in hanging
                    for d in site.deliveries(e)
                ),
                "a look-up that is given up, and others that were put off",
            )
    answered.set()

    failures = [d.failure_count for e in hanging for d in site.deliveries(e)]
    assert sorted(failures) == [0, 0, 0, 1]
    assert [a.error_code for e in hanging for a in site.attempts(e)] == ["timed_out"]


async def test_two_processes_share_the_limit_of_a_queue(site: Site) -> None:
    running, most = [0], [0]

    def answer(connection: Any, number: int) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.02)
        running[0] -= 1
        ok(connection, number)

    with receiving_messages(site, answer, 60) as (receiver, endpoint, messages):
        settings = fast_settings(lane_slots_max=3)
        one, two = (new_deliverer(site.engine, settings) for _ in range(2))
        async with delivering(one), delivering(two):
            await until(lambda: set(site.states(endpoint)) == {"delivered"}, "delivery")

    assert sorted(receiver.ids) == sorted(f"evt_{m.message_id.hex}" for m in messages)
    assert most[0] <= 3


async def test_breaker_limits_attempts_at_a_failing_receiver(site: Site) -> None:
    """While it is down there is one attempt per break, and each break is twice as long."""
    is_up = threading.Event()

    def answer(connection: socket.socket, number: int) -> None:
        (ok if is_up.is_set() else status(503))(connection, number)

    settings = fast_settings(time_scale=0.01, breaker_failures=5)
    with receiving_messages(site, answer, 30) as (receiver, endpoint, _):
        async with delivering(new_deliverer(site.engine, settings)):
            await until(lambda: len(receiver.requests) >= 10, "breaks after the first attempts")
            is_up.set()
            await until(lambda: set(site.states(endpoint)) == {"delivered"}, "recovery")

    breaks_s = [two.at_s - one.at_s for one, two in pairwise(receiver.requests[7:10])]
    assert breaks_s[0] >= 0.85 * 0.4  # after eight failures: 5 s are 50 ms, doubled three times
    assert breaks_s[1] >= 0.85 * 0.8


async def test_disabled_endpoint_is_not_called(site: Site) -> None:
    with receiving_messages(site, ok, 2) as (receiver, endpoint, _):
        with site.engine.begin() as connection:
            change_endpoint(connection, site.tenant_id, endpoint, EndpointChange(enabled=False))
        assert site.states(endpoint) == ["dropped"] * 2

        with site.engine.begin() as connection:
            change_endpoint(connection, site.tenant_id, endpoint, EndpointChange(enabled=True))
        site.send(20)
        disabled = sa.update(webhook_endpoints).values(disabled_at=sa.func.now())
        with site.engine.begin() as connection:  # as if their commit was the later one
            connection.execute(disabled)
            trial = create_test_delivery(connection, site.tenant_id, endpoint, "batch.completed")
        await run_until(
            lambda: "pending" not in site.states(endpoint), "the end", site, look_interval_s=5
        )

    assert site.states(endpoint) == ["delivered"] + ["dropped"] * 22
    assert receiver.ids == [f"evt_{trial.hex}"]


async def test_claims_of_a_dead_process_are_repeated_with_the_same_id(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.webhooks.delivery.deliverer._LEASE_MARGIN_S", 0.0)
    monkeypatch.setattr("results.webhooks.delivery.deliverer.release_deliveries", lambda *_: None)
    with receiving_messages(site, silent) as (receiver, endpoint, (message,)):
        settings = fast_settings(timeout_s=4)  # here it is how long a claim lasts, too
        async with delivering(new_deliverer(site.engine, settings)):
            await until(lambda: len(receiver.requests) == 1, "a try that is cut")
        receiver.answer = ok
        await deliver(site, endpoint, timeout_s=4)

    assert receiver.ids == [f"evt_{message.message_id.hex}"] * 2
    assert [row.failure_count for row in site.deliveries(endpoint)] == [0]
