"""Durable calls."""

import uuid
from functools import partial
from typing import Any

import openai

from tests.sdk.checks.site import Site, equal, poll, refused


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
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    ask = partial(site.chat, max_tokens=2000, stream=True, extra_headers=headers)
    with ask() as stream:
        next(stream)
        error = refused(openai.ConflictError, ask)
    equal((error.status_code, error.code), (409, "idempotency_key_in_flight"))


def stream_replayed_under_its_key(site: Site) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    first, second = (list(_raw(site, headers, stream=True).parse()) for _ in range(2))
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
    raw = _raw(site, {}, extra_body={"background": True})
    equal((raw.status_code, raw.parse().object), (202, "job"))
    _await_answer(site, raw.parse().id)


def _raw(site: Site, headers: dict[str, str], **options: Any) -> Any:
    """An answered call is in flight until its answer is stored: meanwhile the client retries on
    409.
    """
    return site.raw_chat(5, **{"max_tokens": 4, "extra_headers": headers, **options})


def _await_answer(site: Site, job_id: str) -> None:
    def read() -> Any:
        return site.client.get(f"/jobs/{job_id}", cast_to=object)

    job = poll(read, lambda found: found["status"] == "completed")
    equal((job["object"], job["response"]["status_code"]), ("job", 200))
    equal(job["response"]["body"]["object"], "chat.completion")
