"""Goal: durable calls through every role are answered, found by id and key, and run once."""

import json
import time
from functools import partial
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from jobs.tables.jobs import jobs
from storage.postgres.items import items
from tests.support.stacks import Stack
from tests.support.until import until

ENDPOINT = "/v1/chat/completions"
ENDED_S_MAX = 30.0


def body_of(stack: Stack, text: str, **more: object) -> dict[str, Any]:
    return {"model": stack.model, "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.timeout(300)
def test_a_background_call_larger_than_a_record_is_answered(stack: Stack) -> None:
    body = body_of(stack, "x" * 600_000, background=True)
    answer = stack.request("POST", ENDPOINT, json=body)
    assert answer.status_code == 202
    show = partial(stack.request, "GET", answer.headers["location"])
    until(lambda: show().json()["status"] == "completed", timeout_s=ENDED_S_MAX)
    job = show().json()
    assert job["id"] == answer.json()["id"]
    assert job["response"]["status_code"] == 200
    assert job["response"]["body"]["object"] == "chat.completion"
    assert job["usage"]["total_tokens"] == job["response"]["body"]["usage"]["total_tokens"]


@pytest.mark.timeout(300)
def test_a_keyed_call_survives_a_killed_api_and_runs_once(stack: Stack) -> None:
    before = counts(stack)
    body, headers = body_of(stack, "once"), {"Idempotency-Key": "e2e-once"}
    killed = False
    post = partial(stack.request, "POST", ENDPOINT, json=body, headers=headers)
    deadline_s = time.monotonic() + ENDED_S_MAX
    while True:
        assert time.monotonic() < deadline_s
        try:
            answer = post()
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if answer.status_code == 200 and killed:
            break
        assert answer.status_code in {200, 409, 503}, answer.text
        if not killed:
            killed = True
            stack.kill("api")
    again = post()
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
