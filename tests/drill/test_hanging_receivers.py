"""Goal: while half of the webhook endpoints hang, the others receive an event within two seconds.

With the default settings: an attempt at a silent receiver takes 20 s.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from pydantic import SecretStr

from results.webhooks.settings import WebhookSettings
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tests.integration.jobs.rows import add_tenant
from tests.integration.webhooks.conftest import Site, delivering, new_deliverer, until
from tests.integration.webhooks.receivers import ok, receiving, silent

ENDPOINTS_EACH = 20
ROUNDS = 30
ROUND_S = 1.0
FIRST_ATTEMPT_P95_S_MAX = 2.0


@pytest.mark.timeout(300)
async def test_first_attempts_are_fast_while_half_of_the_endpoints_hang(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    engine = create_engine(DatabaseSettings(url=SecretStr(database_url)), application_name="drill")
    settings = WebhookSettings(allow_private=True, endpoints_max=100, stop_grace_s=0)
    with engine.begin() as connection:
        site = Site(engine, add_tenant(connection))
    committed: dict[str, float] = {}
    with ExitStack() as stack:
        good = [stack.enter_context(receiving(ok)) for _ in range(ENDPOINTS_EACH)]
        hanging = [stack.enter_context(receiving(silent)) for _ in range(ENDPOINTS_EACH)]
        for receiver in (*good, *hanging):
            site.endpoint(receiver.url)
        async with delivering(new_deliverer(engine, settings)):
            for _ in range(ROUNDS):
                (message,) = await asyncio.to_thread(site.send)
                committed[f"evt_{message.message_id.hex}"] = time.monotonic()
                await asyncio.sleep(ROUND_S)
            await until(
                lambda: all(len(receiver.requests) >= ROUNDS for receiver in good),
                "every event at every good endpoint",
            )
        waits_s = sorted(
            request.at_s - committed[request.headers["webhook-id"]]
            for receiver in good
            for request in receiver.requests
        )
        reached = sum(bool(receiver.requests) for receiver in hanging)
    engine.dispose()

    assert len(waits_s) == ENDPOINTS_EACH * ROUNDS
    assert reached == ENDPOINTS_EACH
    p95_s = statistics.quantiles(waits_s, n=20)[-1]
    record_property("first_try_p95_s", round(p95_s, 3))
    print(  # noqa: T201  the figure is the result of the drill
        f"\n{len(waits_s)} first attempts: p50 {statistics.median(waits_s) * 1000:.0f} ms, "
        f"p95 {p95_s * 1000:.0f} ms, longest {waits_s[-1] * 1000:.0f} ms"
    )
    assert p95_s <= FIRST_ATTEMPT_P95_S_MAX
