"""Expectations of responses, and requests that tests share."""

import json
import re
from typing import Any

import httpx

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")


def ok(answer: httpx.Response, status: int = 200) -> Any:
    """Return the JSON of a good answer."""
    assert answer.status_code == status, answer.text
    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    return answer.json()


def refused(answer: httpx.Response, status: int) -> dict[str, str | None]:
    """Return the error of an answer that is in the envelope."""
    assert answer.status_code == status, answer.text
    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    error: dict[str, str | None] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def is_replay(answer: httpx.Response) -> bool:
    """Whether an answer is that of an earlier request with the same key."""
    return bool(answer.headers.get("idempotent-replayed") == "true")


def interrupted_after(text: str) -> list[str]:
    """Return the events of a stream before its last one, which says that it was interrupted."""
    *events, last = [event for event in text.split("\n\n") if event]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stream_interrupted"
    return events


def upload(
    client: httpx.Client, content: bytes = b"{}\n", *, name: str = "in.jsonl", **fields: str
) -> httpx.Response:
    """Upload a file; `fields` replace the purpose `batch`."""
    return client.post(
        "/v1/files", data={"purpose": "batch"} | fields, files={"file": (name, content)}
    )


def file_id(client: httpx.Client, content: bytes = b"{}\n") -> str:
    """Upload a file and return its id."""
    return str(ok(upload(client, content))["id"])


def batch_body(input_file_id: str, **fields: object) -> dict[str, object]:
    """Return the body of a good request for a batch, with other `fields`."""
    return {
        "input_file_id": input_file_id,
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    } | fields


def batch_id(client: httpx.Client) -> str:
    """Create a batch and return its id."""
    return str(ok(client.post("/v1/batches", json=batch_body(file_id(client))))["id"])


def newest(client: httpx.Client) -> dict[str, Any]:
    """Return the newest entry of the installation's audit log."""
    found: dict[str, Any] = ok(client.get("/v1/admin/audit_log?limit=1"))["data"][0]
    return found
