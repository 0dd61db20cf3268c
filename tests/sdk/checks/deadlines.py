"""Timeouts of the client and of the call. The engine takes 50 ms for an answer."""

import time
from typing import Any

import openai

from tests.sdk.checks.site import MESSAGES, Site, equal, refused


def of_the_call(site: Site) -> None:
    in_a_header: dict[str, Any] = {"extra_headers": {"X-Request-Timeout-Ms": "5"}}
    for options in ({"extra_body": {"timeout_ms": 5}}, in_a_header, in_a_header | {"stream": True}):
        error = refused(openai.InternalServerError, site.chat, **options)
        equal((error.status_code, error.code), (504, "deadline_exceeded"))


def in_the_middle_of_a_stream(site: Site) -> None:
    """Chunks before the deadline stay valid; the stream ends with an error that the client raises.

    The complete stream would take eight seconds.
    """
    started_s = time.monotonic()
    stream = site.chat(max_tokens=4000, stream=True, extra_body={"timeout_ms": 4000})
    chunk_count = 0
    try:
        for _ in stream:
            chunk_count += 1
    except openai.APIError as error:
        equal(error.code, "deadline_exceeded")
    else:
        raise AssertionError("the stream ended without an error")
    equal(chunk_count > 10, True)
    equal(time.monotonic() - started_s < 20, True)


def not_exceeded(site: Site) -> None:
    for name in ("timeout_ms", "queue_timeout_ms"):
        answer = site.client.embeddings.create(
            model=site.embedding_model, input="in time", extra_body={name: 20_000}
        )
        equal(len(answer.data), 1)


async def of_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        try:
            await client.with_options(timeout=0.02).chat.completions.create(
                model=site.chat_model, messages=MESSAGES
            )
        except openai.APITimeoutError:
            return
    raise AssertionError("answered in time")
