"""Goal: on every route, an object of another tenant is like one that never existed.

The routes come from the application itself: one without an entry in `asks.py` fails here.
"""

import math
import re
import statistics
import time
from collections.abc import Mapping
from typing import get_type_hints

import httpx
import pytest
from fastapi.dependencies.utils import get_flat_dependant

from api.http.openapi_document import BODIES
from tests.integration.api.answers import ok, refused
from tests.integration.api.every_route.asks import ASKS, OPEN, OPERATOR_ASKS, PLAIN, Ask
from tests.integration.api.every_route.routes import is_for_operators, served
from tests.integration.api.every_route.worlds import Two, everything, never_existed

pytestmark = pytest.mark.timeout(180)  # the first test starts the whole API

FILE = {"file": ("in.jsonl", b"{}")}
DIFFERS = {"date", "x-request-id"}

NO_IDS = {"limit", "order", "purpose", "status", "log", "name", "revoked", "cancel_only"}
NO_IDS |= {"verification", "retired", "all", "device_gib", "memory_share"}
"""Query parameters that name nothing of anybody's."""


BY_NAME = {f"/v1/admin/{what}" for what in ("models", "pools", "replicas", "topics", "quarantines")}
BY_NAME |= {"/v1/admin/aliases", "/v1/admin/model_keys"}
"""Lists whose `after` is a name that need not exist."""

EVERY_ASK = ASKS | OPERATOR_ASKS
NAMES_NO_ID = {"/v1/models/{name}", "/v1/admin/pools/{pool}/tenants"}  # of tenants


def test_every_route_is_covered() -> None:
    assert served().keys() == ASKS.keys() | OPERATOR_ASKS.keys()
    assert {*filter(is_for_operators, served())} == OPERATOR_ASKS.keys()


def test_every_path_and_query_parameter_is_covered() -> None:
    missing = []
    for (method, path), route in served().items():
        if route is None or path in NAMES_NO_ID:
            continue
        asked = [ask.path for ask in EVERY_ASK[method, path]]
        queries = get_flat_dependant(route.dependant).query_params
        parameters = [p.alias for p in queries if p.alias not in NO_IDS]
        if path == "/v1/batches/{batch_id}/results" or (method == "GET" and path in BY_NAME):
            parameters.remove("after")  # a number in one batch, or a name
        missing += [(path, name) for name in parameters if f"?{name}={{" not in "".join(asked)]
        templates = [re.split("[/?]", template) for template in asked]
        for place, part in enumerate(path.split("/")):
            if part.startswith("{") and not any(t[place].startswith("{") for t in templates):
                missing.append((path, part))
    assert missing == []


def test_every_id_in_a_body_is_covered() -> None:
    """Fields of bodies that end in `_id`, and the two of a redrive."""
    fields = {name for body in BODIES.values() for name in get_type_hints(body)}
    ids = {name for name in fields if re.fullmatch(r".*_ids?|ids|batch", name)}
    asked = {
        name
        for asks in EVERY_ASK.values()
        for ask in asks
        for name, value in (ask.body or {}).items()
        if "{" in str(value) and "{own." not in str(value)
    }
    assert ids == {"input_file_id", "message_id", "ids", "batch"}
    assert ids <= asked


ALL_ASKS = [(method, ask) for (method, _), asks in ASKS.items() for ask in asks]


def named(method_and_ask: object) -> str:
    return method_and_ask.path if isinstance(method_and_ask, Ask) else str(method_and_ask)


@pytest.mark.parametrize(("method", "ask"), ALL_ASKS, ids=named)
def test_a_foreign_id_is_like_one_that_never_existed(two: Two, method: str, ask: Ask) -> None:
    assert ask.names
    before = everything(two.site.engine)
    own = {f"own.{name}": value for name, value in two.stranger.ids.items()}
    foreign = send(two.asking_stranger, method, ask, {**two.owner.ids, **own})
    missing = send(two.asking_stranger, method, ask, {**never_existed(), **own})

    assert foreign.status_code in {400, 404, 405}, foreign.text
    assert_same(foreign, missing)
    refused(foreign, missing.status_code)
    assert everything(two.site.engine) == before


@pytest.mark.parametrize(
    "principal", ["none", "revoked", "revoked operator", "malformed", "another scheme"]
)
def test_without_a_valid_key_nothing_is_shown_or_changed(two: Two, principal: str) -> None:
    before = everything(two.site.engine)
    authorization = {
        "none": "",
        "revoked": f"Bearer {two.revoked.secret}",
        "revoked operator": f"Bearer {two.revoked_operator.secret}",
        "malformed": "Bearer sk-x",
        "another scheme": "Basic eDp5",
    }[principal]
    own = {f"own.{name}": value for name, value in two.owner.ids.items()} | {"model": "org/small"}
    with httpx.Client(base_url=two.site.url, timeout=20) as client:
        if authorization:
            client.headers["authorization"] = authorization
        for route in served().keys() - OPEN:
            for ask in EVERY_ASK[route] or [PLAIN.get(route, Ask(route[1]))]:
                real, missing = (
                    send(client, route[0], ask, {**ids, **own})
                    for ids in (two.owner.ids, never_existed())
                )
                assert_same(real, missing)
                assert refused(real, 401)["code"] == "invalid_api_key", route
                assert real.headers["www-authenticate"] == "Bearer"
    assert everything(two.site.engine) == before


def test_no_key_is_accepted_by_routes_for_the_other_kind(two: Two) -> None:
    """An operator's key opens nothing of a tenant, and a tenant's key nothing of operators."""
    before = everything(two.site.engine)
    for route in served().keys() - OPEN:
        client = two.asking_owner if is_for_operators(route) else two.asking_operator
        own = {f"own.{name}": value for name, value in two.owner.ids.items()}
        for ask in EVERY_ASK[route] or [PLAIN.get(route, Ask(route[1]))]:
            ids = {**two.owner.ids, **two.operators_ids, **own, "model": "org/small"}
            real = send(client, route[0], ask, ids)
            missing = send(client, route[0], ask, {**ids, **never_existed()})
            assert_same(real, missing)
            error = refused(real, 401)
            assert error["code"] == "invalid_api_key", route
            assert "operator key" in str(error["message"]), route
    assert everything(two.site.engine) == before


def test_lists_show_only_own_objects(two: Two) -> None:
    shown = [
        two.asking_stranger.get(path).text
        for method, path in served()
        if method == "GET" and "{" not in path and (method, path) not in OPEN | {*OPERATOR_ASKS}
    ]
    told = "".join(shown)

    assert two.stranger.ids["batch"] in told
    assert [name for name, value in two.owner.ids.items() if value in told] == []


def test_a_foreign_id_takes_as_long_as_a_missing_one(two: Two) -> None:
    """Of two that are asked one after the other, neither is slower by much and as a rule.

    What else the machine does meets either, so by chance alone it makes no rule: each is the slower
    one in half of the pairs, but for five deviations.
    """
    later_s: list[float] = []
    for path in ("/v1/files/{file}", "/v1/batches/{batch}", "/v1/dead_letters/{letter}"):
        for number in range(70):
            pair = [two.owner.ids, never_existed()]
            took_s = [0.0, 0.0]
            for which in (0, 1) if number % 2 else (1, 0):
                began_s = time.perf_counter()
                send(two.asking_stranger, "GET", Ask(path), pair[which])
                took_s[which] = time.perf_counter() - began_s
            later_s.append(took_s[0] - took_s[1])

    slower_count = sum(late_s > 0 for late_s in later_s)
    is_rule = abs(slower_count - len(later_s) / 2) > 5 * math.sqrt(len(later_s)) / 2
    assert abs(statistics.median(later_s)) < 0.005 or not is_rule, later_s


def test_a_key_of_one_tenant_replays_no_answer_of_another(two: Two) -> None:
    headers = {"idempotency-key": "shared"}
    theirs, ours = (
        ok(client.post("/v1/files", data={"purpose": "batch"}, files=FILE, headers=headers))
        for client in (two.asking_owner, two.asking_stranger)
    )

    assert theirs["id"] != ours["id"]


@pytest.mark.parametrize(("method", "ask"), ALL_ASKS, ids=named)
def test_the_owner_gets_another_answer(two: Two, method: str, ask: Ask) -> None:
    """The matrix asks for things that exist; it stands last, since some of it ends them."""
    if (method, "/v1/batches/{batch_id}") not in served() and "{ended}" in ask.path:
        return
    cross_kind = {"/v1/files?after={batch}", "/v1/batches?after={job}", "/v1/batches/{job}"}
    if ask.path in cross_kind or "test" in ask.path:
        return
    own = {f"own.{name}": value for name, value in two.owner.ids.items()}
    answer = send(two.asking_owner, method, ask, {**two.owner.ids, **own})

    assert answer.status_code not in {404, 405}, answer.text
    assert "names nothing" not in answer.text
    assert answer.status_code < 400 or answer.status_code in {400, 409, 410}, answer.text


def send(client: httpx.Client, method: str, ask: Ask, ids: Mapping[str, str]) -> httpx.Response:
    path, body = ask.filled(ids)
    return client.request(method, path, json=body)


def assert_same(one: httpx.Response, other: httpx.Response) -> None:
    """Fail unless two answers are the same but for the request's id."""
    assert one.status_code == other.status_code
    assert one.content == other.content
    assert [pair for pair in one.headers.multi_items() if pair[0] not in DIFFERS] == [
        pair for pair in other.headers.multi_items() if pair[0] not in DIFFERS
    ]
