"""Goal: the access log has a line for each request and nothing that a user or a key holds."""

import logging

import httpx
import pytest

from core.runtime.logs import JsonFormatter
from tests.integration.api.answers import file_id
from tests.integration.api.sites import OpenSite

SECRET = "hush"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records if record.name == "api.access"]


def test_each_request_has_a_line(open_site: OpenSite, caplog: pytest.LogCaptureFixture) -> None:
    site = open_site(access_log=True)
    with site.client() as client, caplog.at_level(logging.INFO, logger="api.access"):
        file = file_id(client, SECRET.encode())
        shown = client.get(f"/v1/files/{file}?after={SECRET}")
        head = client.head(f"/v1/files/{file}")
        client.get(f"/v1/batches/batch_0/items/{SECRET}")
        client.get(f"/{SECRET}")
        httpx.get(f"{site.url}/v1/models", headers={"authorization": f"Bearer {SECRET}"})
        client.get("/healthz")
    found = lines(caplog)
    key = f"key_{site.key.key_id.hex}"

    assert [(line["method"], line["route"], line["status"], line["key"]) for line in found] == [
        ("POST", "/v1/files", "200", key),
        ("GET", "/v1/files/{file_id}", "200", key),
        ("HEAD", "/v1/files/{file_id}", "200", key),
        ("GET", "/v1/batches/{batch_id}/items/{custom_id:path}", "404", key),
        ("GET", "unknown", "404", None),
        ("GET", "/v1/models", "401", None),
    ]
    assert {line["address"] for line in found} == {"127.0.0.1"}
    assert found[1]["file_id"] == found[2]["file_id"] == file
    assert found[1]["request_id"] == shown.headers["x-request-id"]
    assert found[2]["request_id"] == head.headers["x-request-id"]
    assert "custom_id" not in found[3]
    written = [
        JsonFormatter("api").format(record)
        for record in caplog.records
        if record.name == "api.access"
    ]
    assert SECRET not in str(written)
    assert site.key.secret not in str(written)


def test_without_the_setting_nothing_is_logged(
    open_site: OpenSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = open_site()
    with site.client() as client, caplog.at_level(logging.INFO, logger="api.access"):
        assert client.get("/v1/models").status_code == 200
    assert lines(caplog) == []


def test_failures_of_an_address_are_bounded_and_counted(open_site: OpenSite) -> None:
    site = open_site(failed_authentications_per_minute=3)
    with site.client() as known, httpx.Client(base_url=site.url) as stranger:
        assert known.get("/v1/models").status_code == 200
        statuses = [stranger.get("/v1/models").status_code for _ in range(5)]
        refused = stranger.get("/v1/models")
        assert known.get("/v1/models").status_code == 200
        with site.client(site.other_key) as unknown_yet:
            assert unknown_yet.get("/v1/models").status_code == 429
        counted = stranger.get("/metrics").text

    assert statuses == [401, 401, 401, 429, 429]
    assert refused.json()["error"]["code"] == "too_many_failed_authentications"
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    name = "millrace_api_authentication_failures_total"
    assert f'{name}{{reason="missing"}}' in counted
    assert f'{name}{{reason="limited"}}' in counted
