"""Goal: durable calls through every role are answered, found by id and key, and run once."""

import json
import time
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from jobs.tables.jobs import jobs
from storage.postgres.items import items
from tests.support.stacks import Stack

ENDPOINT = "/v1/chat/completions"
ENDED_S_MAX = 30.0


def client_of(stack: Stack) -> httpx.Client:
    headers = {"authorization": f"Bearer {stack.key}"}
    return httpx.Client(base_url=stack.url, headers=headers, timeout=60)


def body_of(stack: Stack, text: str, **more: object) -> dict[str, Any]:
    return {"model": stack.model, "messages": [{"role": "user", "content": text}], **more}


def ended(client: httpx.Client, job: str) -> dict[str, Any]:
    """Wait for the end of a job and return it."""
    deadline_s = time.monotonic() + ENDED_S_MAX
    while True:
        found: dict[str, Any] = client.get(f"/v1/jobs/{job}").raise_for_status().json()
        if found["status"] in {"completed", "expired", "cancelled"}:
            return found
        assert time.monotonic() < deadline_s, found["status"]
        time.sleep(0.02)


@pytest.mark.timeout(300)
def test_a_background_call_is_answered(stack: Stack) -> None:
    for text in ("hello", "x" * 600_000):  # the second does not fit into a record
        with client_of(stack) as client:
            answer = client.post(ENDPOINT, json=body_of(stack, text, background=True))
            assert answer.status_code == 202
            job = ended(client, answer.json()["id"])
            assert client.get(answer.headers["location"]).json() == job
        assert job["status"] == "completed"
        assert job["response"]["status_code"] == 200
        assert job["response"]["body"]["object"] == "chat.completion"
        assert job["usage"]["total_tokens"] == job["response"]["body"]["usage"]["total_tokens"]


@pytest.mark.timeout(300)
def test_a_keyed_call_survives_a_killed_api_and_runs_once(stack: Stack) -> None:
    before = counts(stack)
    body, headers = body_of(stack, "once"), {"Idempotency-Key": "e2e-once"}
    killed = False
    with client_of(stack) as client:
        deadline_s = time.monotonic() + ENDED_S_MAX
        while True:
            assert time.monotonic() < deadline_s
            try:
                answer = client.post(ENDPOINT, json=body, headers=headers)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            if answer.status_code == 200 and killed:
                break
            assert answer.status_code in {200, 409, 503}, answer.text
            if not killed:
                killed = True
                stack.kill("api")
        again = client.post(ENDPOINT, json=body, headers=headers)
    assert answer.headers["idempotent-replayed"] == "true"
    assert again.content == answer.content
    assert json.loads(answer.content)["object"] == "chat.completion"
    assert counts(stack) == (before[0] + 1, before[1] + 1)


def counts(stack: Stack) -> tuple[int, int]:
    """Return how many single requests there are, and how many item rows they have."""
    engine = sa.create_engine(stack.state.database_url, poolclass=sa.NullPool)
    of_requests = jobs.c.kind == "request"
    rows = sa.select(sa.func.count()).select_from(items.join(jobs, jobs.c.id == items.c.job_id))
    with engine.connect() as connection:
        total = connection.scalar(sa.select(sa.func.count()).select_from(jobs).where(of_requests))
        return total or 0, connection.scalar(rows.where(of_requests)) or 0
