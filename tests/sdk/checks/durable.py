"""Durable calls."""

import uuid
from typing import Any

import openai

from tests.sdk.checks.site import MESSAGES, Site, equal, poll, refused


def replayed_under_its_key(site: Site) -> None:
    first, second = (_raw(site, {"Idempotency-Key": key}) for key in [uuid.uuid4().hex] * 2)
    equal(first.headers["x-millrace-durable"], "true")
    equal(first.headers.get("idempotent-replayed"), None)
    equal(second.headers["idempotent-replayed"], "true")
    equal(second.parse(), first.parse())


def reused_key_with_another_body(site: Site) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    _raw(site, headers)
    error = refused(openai.UnprocessableEntityError, site.chat, max_tokens=5, extra_headers=headers)
    equal((error.status_code, error.code), (422, "idempotency_key_reused"))


def key_in_flight(site: Site) -> None:
    body: dict[str, Any] = {
        "model": site.chat_model,
        "messages": MESSAGES,
        "max_tokens": 2000,
        "stream": True,
        "extra_headers": {"Idempotency-Key": uuid.uuid4().hex},
    }
    with site.client.chat.completions.create(**body) as stream:
        next(stream)
        error = refused(openai.ConflictError, site.client.chat.completions.create, **body)
    equal((error.status_code, error.code), (409, "idempotency_key_in_flight"))


def stream_replayed_under_its_key(site: Site) -> None:
    body: dict[str, Any] = {
        "model": site.chat_model,
        "messages": MESSAGES,
        "max_tokens": 8,
        "stream": True,
        "extra_headers": {"Idempotency-Key": uuid.uuid4().hex},
    }
    client = _retrying(site)
    first, second = (list(client.chat.completions.create(**body)) for _ in range(2))
    equal(second, first)


def waited_for(site: Site) -> None:
    raw = _raw(site, {"Prefer": "wait=30"})
    equal((raw.status_code, raw.headers["x-millrace-durable"]), (200, "true"))
    equal(raw.parse().object, "chat.completion")


def not_waited_for(site: Site) -> None:
    raw = _raw(site, {"Prefer": "wait=0"})
    equal(raw.status_code, 202)
    _await_answer(site, raw.parse().id)


def in_the_background(site: Site) -> None:
    raw = _raw(site, {}, background=True)
    equal((raw.status_code, raw.parse().object), (202, "job"))
    _await_answer(site, raw.parse().id)


def unknown_job(site: Site) -> None:
    error = refused(openai.NotFoundError, site.client.get, path="/jobs/nope", cast_to=object)
    equal(sorted(error.body), ["code", "message", "param", "type"])


def _await_answer(site: Site, job_id: str) -> None:
    def read() -> Any:
        return site.client.get(f"/jobs/{job_id}", cast_to=object)

    job = poll(read, lambda found: found["status"] == "completed")
    equal((job["object"], job["response"]["status_code"]), ("job", 200))
    equal(job["response"]["body"]["object"], "chat.completion")


def _retrying(site: Site) -> openai.OpenAI:
    """An answered call is in flight until its answer is stored: meanwhile the client retries on
    409.
    """
    return site.client.with_options(max_retries=5)


def _raw(site: Site, headers: dict[str, str], **extra: bool) -> Any:
    return _retrying(site).chat.completions.with_raw_response.create(
        model=site.chat_model,
        messages=MESSAGES,
        max_tokens=4,
        extra_headers=headers,
        extra_body=extra,
    )
