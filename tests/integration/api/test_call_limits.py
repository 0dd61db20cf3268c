"""Goal: the timeout of a call is the least of the limits of its client, tenant and endpoint."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from api.online.settings import OnlineSettings
from core.clock import SystemClock
from core.errors import SettingsError
from tenancy.tenants import set_call_timeout, set_zero_retention
from tests.integration.api.online_site import ASK, ENDPOINT, Online, opened
from tests.integration.api.pool import answer_at_once, say_nothing
from topics.settings import KafkaSettings

Open = Callable[..., Online]


@pytest.fixture
def site_with(kafka: KafkaSettings, database_url: str, tmp_path: Path) -> Iterator[Open]:
    """Start an API with durable calls and these variables; nobody answers its calls."""

    def start(**variables: str) -> Online:
        online = OnlineSettings.from_env(variables)
        folder = tmp_path / uuid.uuid4().hex
        found = stack.enter_context(opened(kafka, database_url, folder, online))
        found.pool.script = say_nothing
        return found

    with ExitStack() as stack:
        yield start


def ask(durable: Online, **fields: object) -> httpx.Response:
    with durable.site.client() as client:
        return client.post(ENDPOINT, json=ASK | fields)


def test_timeout_by_endpoint(site_with: Open) -> None:
    variables = {"MILLRACE_ONLINE_TIMEOUTS_S": f"/v1/embeddings=60, {ENDPOINT}=0.3"}
    durable = site_with(**variables)
    for fields in ({}, {"timeout_ms": 60_000}):
        assert ask(durable, **fields).status_code == 504


def test_timeout_by_tenant(site_with: Open) -> None:
    durable = site_with()
    with durable.site.engine.begin() as connection:
        set_call_timeout(connection, durable.site.tenant_id, 300)
    answer = ask(durable, timeout_ms=60_000)

    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"


def test_default_wait_by_endpoint(site_with: Open) -> None:
    durable = site_with(MILLRACE_ONLINE_WAITS_S=f"{ENDPOINT}=0")
    answer = ask(durable)

    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "wait=0"
    assert answer.json()["id"].startswith("job_")
    with durable.site.client() as client:  # the client's own wish counts
        wished = client.post(ENDPOINT, json=ASK, headers={"prefer": "wait=1"})
    assert wished.headers["preference-applied"] == "wait=1"


def test_the_default_wait_does_not_apply_to_zero_retention(site_with: Open) -> None:
    durable = site_with(MILLRACE_ONLINE_WAITS_S=f"{ENDPOINT}=0")
    with durable.site.engine.begin() as connection:
        set_zero_retention(connection, durable.site.tenant_id, on=True)

    assert ask(durable, timeout_ms=300).status_code == 504  # it waited, as without a default


@pytest.mark.parametrize(
    "text", ["/v1/chat=1", f"{ENDPOINT}", f"{ENDPOINT}=soon", f"{ENDPOINT}=-1", f"{ENDPOINT}=1e9"]
)
def test_an_invalid_setting_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="MILLRACE_ONLINE_TIMEOUTS_S"):
        OnlineSettings.from_env({"MILLRACE_ONLINE_TIMEOUTS_S": text})


def test_an_adjusted_wall_clock_moves_no_deadline(
    site_with: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = site_with()
    pool = durable.pool
    pool.script = answer_at_once
    assert ask(durable).status_code == 200
    monkeypatch.setattr(SystemClock, "wall_s", lambda _: time.time() + 400.0)
    assert ask(durable).status_code == 200
    first_s, second_s = (chunk.job.deadline_s for chunk in pool.chunks)
    told = len(pool.news)
    pool.wait_for(lambda: len(pool.news) > told)
    assert second_s - first_s < 60.0
    assert pool.news[-1].now_s - pool.news[0].now_s < 60.0
