"""Goal: without Postgres every request ends soon with an error, and works again afterwards."""

import time
from collections.abc import Callable, Iterator

import httpx
import pytest
import sqlalchemy as sa

from core.errors import MillraceError
from storage.postgres.watermark_row import commit_watermark
from tests.integration.api.answers import ok, refused, upload
from tests.integration.api.pipe import Pipe, open_pipe
from tests.integration.api.sites import OpenSite, Site
from tests.support.until import until, until_found

DATABASE_TIMEOUT_S = 0.5
ANSWER_S_MAX = 24 * DATABASE_TIMEOUT_S
"""The bound of 10 s, with the timeout above in its place, four times over: it tells a request that
ends from one that hangs."""


@pytest.fixture
def pipe(database_url: str) -> Iterator[Pipe]:
    with open_pipe(database_url) as opened:
        yield opened


@pytest.fixture
def piped_site(open_site: OpenSite, pipe: Pipe) -> Site:
    return open_site(url=pipe.url, database_timeout_s=DATABASE_TIMEOUT_S, key_cache_s=0)


def until_answered(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask until Postgres answers in the short time that these tests give it."""

    def answered() -> httpx.Response | None:
        return None if (answer := ask()).status_code == 503 else answer

    return until_found(answered)


def timed(client: httpx.Client, method: str, path: str) -> httpx.Response:
    began_s = time.monotonic()
    answer = client.request(method, path)
    assert time.monotonic() - began_s < ANSWER_S_MAX
    return answer


@pytest.mark.parametrize("how", ["stall", "cut"])
def test_requests_are_refused_and_recover(piped_site: Site, pipe: Pipe, how: str) -> None:
    with piped_site.client() as client:
        kept = str(ok(until_answered(lambda: upload(client)))["id"])
        getattr(pipe, how)()
        for method, path in (
            ("GET", f"/v1/files/{kept}"),
            ("GET", f"/v1/files/{kept}/content"),
            ("DELETE", f"/v1/files/{kept}"),
            ("GET", "/v1/batches"),
            ("POST", "/v1/batches"),
            ("GET", "/v1/models"),
        ):
            answer = timed(client, method, path)
            assert refused(answer, 503)["type"] == "service_unavailable_error"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        refused(upload(client), 503)
        typo = client.get("/v1/models", headers={"authorization": "Bearer sk-typo"})
        assert refused(typo, 401)["code"] == "invalid_api_key"
        assert timed(client, "GET", "/healthz").status_code == 200
        assert timed(client, "GET", "/readyz").status_code == 503
        assert timed(client, "GET", "/metrics").status_code == 200

        pipe.mend()
        ok(until_answered(lambda: client.get(f"/v1/files/{kept}")))
        ok(until_answered(lambda: client.get("/readyz")))


def test_a_cached_key_does_not_bypass_postgres(open_site: OpenSite, pipe: Pipe) -> None:
    site = open_site(url=pipe.url, database_timeout_s=1, key_cache_s=0.3)
    with site.client() as client:
        ok(until_answered(lambda: client.get("/v1/models")))
        pipe.cut()
        refused(client.get("/v1/models"), 503)


def test_lost_commits_end_the_process_and_readiness_says_why(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[MillraceError] = []
    monkeypatch.setattr("api.app.end_process", failures.append)
    site = open_site()
    with site.client() as client:
        ok(until_answered(lambda: client.get("/readyz")))
        with site.engine.begin() as connection:
            connection.execute(sa.update(commit_watermark).values(lost_above=1))
        until(lambda: failures)
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "millrace recover" in answer.json()["status"]
    assert [failure.code for failure in failures] == ["commits_lost"]
