"""Goal: the timeout of a call is the least of the limits of its client, tenant and endpoint."""

import time

import pytest

from api.online.settings import OnlineSettings
from core.clock import SystemClock
from core.errors import SettingsError
from tenancy.tenant_changes import change_tenant_limits
from tenancy.tenants import set_zero_retention
from tests.integration.api.answers import ok, refused
from tests.integration.api.online_site import ASK, ENDPOINT, Online, OpenOnline
from tests.integration.api.pool import say_nothing


def test_timeout_by_endpoint(open_online: OpenOnline) -> None:
    online = open_online(timeouts_s=f"/v1/embeddings=60, {ENDPOINT}=0.3")
    online.pool.script = say_nothing
    for fields in ({}, {"timeout_ms": 60_000}):
        assert online.call(fields).status_code == 504


def test_timeout_by_tenant(online: Online) -> None:
    online.pool.script = say_nothing
    with online.site.engine.begin() as connection:
        change_tenant_limits(connection, online.site.tenant_id, {"call_timeout_ms": 300})
    assert refused(online.call({"timeout_ms": 60_000}), 504)["code"] == "deadline_exceeded"


def test_default_wait_by_endpoint(open_online: OpenOnline) -> None:
    online = open_online(waits_s=f"{ENDPOINT}=0")
    online.pool.script = say_nothing
    answer = online.call()

    assert ok(answer, 202)["id"].startswith("job_")
    assert answer.headers["preference-applied"] == "wait=0"
    wished = online.call(Prefer="wait=1")  # the client's own wish counts
    assert wished.headers["preference-applied"] == "wait=1"
    bounded = online.call(
        X_Request_Queue_Timeout_Ms="100"
    )  # no call with a queue timeout is durable
    assert refused(bounded, 504)["code"] == "queue_timeout"

    site = online.site
    with site.engine.begin() as connection:
        set_zero_retention(connection, site.other_tenant_id, on=True)
    with site.client(site.other_key) as other:  # waits for its deadline, as without a default
        assert other.post(ENDPOINT, json=ASK | {"timeout_ms": 300}).status_code == 504


@pytest.mark.parametrize(
    "text", ["/v1/chat=1", f"{ENDPOINT}", f"{ENDPOINT}=soon", f"{ENDPOINT}=-1", f"{ENDPOINT}=1e9"]
)
def test_an_invalid_setting_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="MILLRACE_ONLINE_TIMEOUTS_S"):
        OnlineSettings.from_env({"MILLRACE_ONLINE_TIMEOUTS_S": text})


def test_an_adjusted_wall_clock_moves_no_deadline(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = online.pool
    pool.wait_for(lambda: bool(pool.news))
    assert online.call().status_code == 200
    monkeypatch.setattr(SystemClock, "wall_s", lambda _: time.time() + 400.0)
    assert online.call().status_code == 200
    first_s, second_s = (chunk.job.deadline_s for chunk in pool.chunks)
    told = len(pool.news)
    pool.wait_for(lambda: len(pool.news) > told)
    assert second_s - first_s < 60.0
    assert pool.news[-1].now_s - pool.news[0].now_s < 60.0
