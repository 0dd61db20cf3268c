"""Goal: no value in a documented field causes a crash, a hang or a response without envelope."""

import gzip
import json
import struct
from typing import Any, get_type_hints
from uuid import uuid4

import httpx
import pytest

from api.http.openapi_document import BODIES
from core.bodies.own_fields import STREAMED_ENDPOINTS
from registry.models import ENDPOINTS
from tests.integration.api.answers import refused
from tests.integration.api.every_route.asks import CALL, METHODS, NEW_ENDPOINT, OPEN, new_batch
from tests.integration.api.every_route.routes import served
from tests.integration.api.every_route.worlds import Two, own_path

pytestmark = pytest.mark.timeout(180)  # the first test starts the whole API

VALUES = {
    "null": b"null",
    "true": b"true",
    "zero": b"0",
    "minus one": b"-1",
    "a fraction": b"0.5",
    "2^31": b"2147483648",
    "2^63": b"9223372036854775808",
    "30 digits": b"9" * 30,
    "a huge exponent": b"1e400",
    "NaN": b"NaN",
    "an empty string": b'""',
    "a NUL": b'"\\u0000"',
    "a lone surrogate": b'"\\ud800"',
    "line breaks": b'"a\\r\\nb"',
    "direction override": b'"\\u202eabc"',
    "invalid UTF-8": b'"\xff"',
    "64 KiB": b'"' + b"x" * 65_536 + b'"',
    "a path": b'"../../etc/passwd"',
    "an empty list": b"[]",
    "a list of all": b'[null, 1, "a", {}, []]',
    "a list with a NUL": b'["\\u0000"]',
    "a list of 10,000": json.dumps(["x"] * 10_000).encode(),
    "an object": b'{"a": 1}',
    "an object with NULs": b'{"\\u0000": "\\u0000"}',
    "an object with itself twice": b'{"a": "b", "a": "c"}',
    "1,000 keys": json.dumps({str(n): "" for n in range(1000)}).encode(),
    "deep": b"[" * 900 + b"]" * 900,
    "very deep": b"[" * 100_000 + b"]" * 100_000,
}

NEVER_JSON = {"a lone surrogate", "invalid UTF-8", "NaN", "very deep", "a huge exponent"}
OURS = {"model", "stream", "timeout_ms", "background"}
"""Fields of calls; the others are passed on as they are."""

BODIES_WHOLE = {
    "nothing": b"",
    "a brace": b"{",
    "null": b"null",
    "a list": b"[]",
    "a string": b'"x"',
    "two objects": b"{}{}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "very deep": b'{"a":' * 100_000,
    "compressed": gzip.compress(b"{}"),
    "a zip": b"PK\x03\x04" + bytes(100),
    "a surrogate for a key": b'{"\\ud800": 1}',
}

TEXTS = ["", "%00", "%ff", "%ed%a0%80", "-1", "0", "1e9", "9" * 40, "NaN", "..%2f..%2f", "x" * 5000]
"""Values of query parameters and parts of paths, as they stand in a URL."""

HEADERS = [
    ("range", "bytes=-"),
    ("range", "bytes=9999999999999999999999-"),
    ("range", "bytes=0-0,1-1,2-2"),
    ("if-range", '"\xff"'),
    ("last-event-id", "9" * 40),
    ("last-event-id", "x"),
    ("accept", "text/event-stream"),
    ("content-type", "application/json; charset=utf-16"),
    ("content-type", "\xff"),
    ("content-encoding", "gzip"),
    ("idempotency-key", "x" * 5000),
    ("idempotency-key", "\xff\xfe"),
    ("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-zz"),
    ("x-stainless-retry-count", "9" * 40),
    ("prefer", "wait=9999999999999999999"),
    ("x-request-timeout-ms", "9" * 40),
    ("authorization", "Bearer \xff\xff"),
]


def good_body(path: str, two: Two) -> dict[str, Any]:
    """Return what the route would take, so that one hostile field is all that is wrong."""
    ids = two.stranger.ids
    bodies: dict[str, dict[str, Any]] = {
        "/v1/batches": new_batch(ids["file"]),
        "/v1/batches/{batch_id}/append": {"input_file_id": ids["file"]},
        "/v1/dead_letters/redrive": {"ids": [ids["letter"]]},
        "/v1/webhook_endpoints": NEW_ENDPOINT,
        "/v1/webhook_endpoints/{endpoint_id}/replay": {"since": 0},
        "/v1/admin/tenants": {"name": uuid4().hex},
        "/v1/admin/aliases/{alias}": {"target": "org/small"},
        "/v1/admin/model_keys": {"pem": "x", "name": "x"},
        "/v1/admin/unverified_models": {
            "name": "org/served",
            "engine": "simulated",
            "endpoints": ["/v1/embeddings"],
        },
        "/v1/admin/models": {"name": "org/signed", "version": "0" * 64, "key": "0" * 64},
    }
    return bodies.get(path, CALL if path in ENDPOINTS else {})


def fields_of(path: str) -> list[str]:
    if path in ENDPOINTS:
        return [*OURS, "messages", "input", "prompt"]
    return list(get_type_hints(BODIES[path]))


def judge(answer: httpx.Response) -> None:
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    if answer.status_code >= 400:
        refused(answer, answer.status_code)
        assert b"Traceback" not in answer.content
        assert len(answer.content) < 2000


# A trial waits for a deliverer; here there is none, and it is asked for elsewhere.
JSON_PATHS = [path for path in (*BODIES, *ENDPOINTS) if not path.endswith("/test")]


@pytest.mark.parametrize("path", JSON_PATHS)
def test_hostile_values_of_every_documented_field(two: Two, path: str) -> None:
    url = own_path(path, two.asker(path))
    headers = {"content-type": "application/json"}
    for field in fields_of(path):
        rest = {name: value for name, value in good_body(path, two).items() if name != field}
        for name, value in VALUES.items():
            inner = json.dumps(rest).encode()[1:-1]
            body = b"{" + inner + (b", " if inner else b"") + b'"%s": %s}' % (field.encode(), value)
            method = METHODS.get(path, "POST")
            answer = two.asking(url).request(method, url, content=body, headers=headers)
            judge(answer)
            ours = OURS if path in STREAMED_ENDPOINTS else OURS - {"stream"}
            passed_on = path in ENDPOINTS and field not in ours
            if name in NEVER_JSON and not (passed_on and name == "a huge exponent"):
                assert answer.status_code == 400, (field, name, answer.text)


@pytest.mark.parametrize("path", [*BODIES, *ENDPOINTS])
def test_hostile_bodies(two: Two, path: str) -> None:
    url, method = own_path(path, two.asker(path)), METHODS.get(path, "POST")
    for content in BODIES_WHOLE.values():
        answer = two.asking(url).request(
            method, url, content=content, headers={"content-type": "application/json"}
        )
        assert refused(answer, 400)["code"] in {"invalid_json", "invalid_type"}
    for kind in ("application/zip", "text/plain", "multipart/form-data; boundary=x", ""):
        answer = two.asking(url).request(method, url, content=b"{}", headers={"content-type": kind})
        assert refused(answer, 415)["code"] == "unsupported_media_type"
    encoded = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = two.asking(url).request(method, url, content=gzip.compress(b"{}"), headers=encoded)
    assert refused(answer, 415)["code"] == "unsupported_content_encoding"


@pytest.mark.parametrize(("method", "path"), sorted(served().keys() - OPEN))
def test_hostile_parameters_and_headers(two: Two, method: str, path: str) -> None:
    route = served()[method, path]
    ask = two.asking(path).request
    whole = own_path(path, two.asker(path))
    is_read = method == "GET"
    if is_read and route is not None:
        for parameter in route.dependant.query_params:
            for text in TEXTS:
                judge(ask(method, f"{whole}?{parameter.alias}={text}"))
                judge(ask(method, f"{whole}?{parameter.alias}={text}&{parameter.alias}=a"))
    for part in (part for part in path.split("/") if part.startswith("{")):
        for text in TEXTS:
            judge(ask(method, own_path(path.replace(part, text, 1), two.asker(path)), json={}))
    if is_read or path == "/v1/batches":
        for name, value in HEADERS:
            if name == "accept" and path.endswith("/results"):
                continue  # that stream goes on
            raw = [(name.encode(), value.encode("latin-1"))]
            judge(ask(method, whole, headers=raw, content=None if is_read else b"{}"))


def archive() -> bytes:
    """Return the beginning of a zip with a line break in it."""
    return struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, 10, 10, 4, 0) + b"a\nb"


@pytest.mark.parametrize(
    "content", [b"", b"\n" * 1000, archive(), b"\x00" * 1000, '{"a":1}\n'.encode("utf-16")]
)
def test_a_hostile_file_is_stored_and_its_batch_created(two: Two, content: bytes) -> None:
    """What is wrong with lines is told by the batch, not at its creation."""
    made = two.asking_stranger.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in.zip", content)}
    )
    assert made.status_code == 200, made.text
    judge(two.asking_stranger.post("/v1/batches", json=new_batch(made.json()["id"])))
