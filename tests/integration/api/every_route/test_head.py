"""Goal: every route with GET supports HEAD, with the same head and no body."""

from collections.abc import Iterator

import httpx
import pytest

from registry.models import ENDPOINTS
from tests.integration.api.answers import refused
from tests.integration.api.every_route.routes import SILENT, served
from tests.integration.api.every_route.worlds import (
    Two,
    World,
    add_world,
    own_path,
    with_new_tenant,
)

pytestmark = pytest.mark.timeout(180)  # the first test starts the whole API

READ = sorted(path for method, path in served() if method == "GET")
WRITTEN = sorted({path for method, path in served() if method == "POST"} - {*READ})
EVENTS = {"accept": "text/event-stream"}

DIFFERS = {"date", "x-request-id"}
WITH_QUERY = {
    "/v1/admin/model_check": "?model=org/signed",
    "/v1/admin/model_diff": "?old=org/signed&new=org/alias",
    "/v1/admin/model_plan": "?model=org/signed",
}

REFUSED = {"/v1/admin/model_plan": 400}  # the version has no configuration in the store

GROWS = {"/metrics"}
"""What a second request does not find as the first did."""


@pytest.fixture(scope="module")
def world(two: Two) -> World:
    """A tenant that no other test takes anything from."""
    home = with_new_tenant(two.site)
    return add_world(home, home.key)


@pytest.fixture
def client(two: Two, world: World) -> Iterator[httpx.Client]:
    """One connection: an answer that does not end holds up the next request."""
    headers = {"authorization": f"Bearer {world.key.secret}"}
    limits = httpx.Limits(max_connections=1)
    with httpx.Client(base_url=two.site.url, headers=headers, timeout=10, limits=limits) as client:
        yield client


@pytest.mark.parametrize("path", READ)
def test_head_is_get_without_its_body(
    client: httpx.Client, two: Two, world: World, path: str
) -> None:
    url = own_path(path.replace("{batch_id}/callback", f"{world.ids['called']}/callback"), world)
    url += WITH_QUERY.get(path, "")
    headers = {"authorization": f"Bearer {two.operator.secret}"} if "/admin/" in path else {}
    head, get = client.head(url, headers=headers), client.get(url, headers=headers)

    assert (head.status_code, head.content) == (get.status_code, b"")
    assert get.status_code == (503 if path in SILENT else REFUSED.get(path, 200)), get.text
    assert said(head, path) == said(get, path)


def test_head_of_a_stream_releases_everything(client: httpx.Client, world: World) -> None:
    url = own_path("/v1/batches/{batch_id}/results", world)
    before = metric(client, "millrace_api_followers ")
    head = client.head(url, headers=EVENTS)
    after = metric(client, "millrace_api_followers ")
    with client.stream("GET", url, headers=EVENTS) as get:
        assert next(get.iter_lines()) == ": keep-alive"

    assert (head.status_code, head.content) == (200, b"")
    assert said(head, url) == said(get, url)
    assert after <= before


def test_head_ignores_ranges(client: httpx.Client, world: World) -> None:
    url = own_path("/v1/files/{file_id}/content", world)
    head = client.head(url, headers={"range": "bytes=0-1"})

    assert head.status_code == 200
    assert head.headers["content-length"] == str(len(client.get(url).content))


def test_head_of_a_refusal(client: httpx.Client, two: Two) -> None:
    for path in ("/v1/files/file-none", "/v1/nothing", *WRITTEN):
        head, get = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert said(head, path) == said(get, path)
        assert path not in ENDPOINTS or (get.status_code, get.headers["allow"]) == (405, "POST")
    refused(client.get("/v1/files/file-none"), 404)
    assert httpx.head(f"{two.site.url}/v1/models").status_code == 401


def test_heads_are_counted_under_their_route(client: httpx.Client, world: World) -> None:
    client.head(own_path("/v1/files/{file_id}", world))
    series = 'requests_total{method="HEAD",route="/v1/files/{file_id}",status="200"} '
    assert metric(client, f"millrace_api_{series}") >= 1


def said(answer: httpx.Response, path: str) -> dict[str, str]:
    """Return the headers that a second request finds again. Only bodies come in chunks."""
    grows = {"content-length"} if path in GROWS else set()
    passing = DIFFERS | grows | {"transfer-encoding"}
    return {name: value for name, value in answer.headers.items() if name not in passing}


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
