"""Timeouts of the client and of the call. The engine takes 50 ms for an answer."""

import time

import openai

from tests.sdk.checks.site import MESSAGES, Site, equal, refused


def of_the_client(site: Site) -> None:
    client = site.client.with_options(timeout=0.02)
    try:
        client.chat.completions.create(model=site.chat_model, messages=MESSAGES)
    except openai.APITimeoutError:
        return
    raise AssertionError("answered in time")


def in_the_body(site: Site) -> None:
    error = refused(
        openai.InternalServerError,
        lambda: site.chat(extra_body={"timeout_ms": 5}),
    )
    equal((error.status_code, error.code), (504, "deadline_exceeded"))


def in_a_header(site: Site) -> None:
    for stream in (False, True):
        error = refused(
            openai.InternalServerError,
            site.chat,
            stream=stream,
            extra_headers={"X-Request-Timeout-Ms": "5"},
        )
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
    answer = site.client.embeddings.create(
        model=site.embedding_model, input="in time", extra_body={"timeout_ms": 20_000}
    )
    equal(len(answer.data), 1)


def of_the_queue_only(site: Site) -> None:
    """A call may take longer than it may wait in the queue; a durable call has no queue timeout."""
    answer = site.client.embeddings.create(
        model=site.embedding_model, input="in time", extra_body={"queue_timeout_ms": 20_000}
    )
    equal(len(answer.data), 1)
    error = refused(
        openai.BadRequestError,
        lambda: site.chat(extra_headers={"Prefer": "wait=5", "X-Request-Queue-Timeout-Ms": "500"}),
    )
    equal(error.param, "x-request-queue-timeout-ms")


def out_of_range(site: Site) -> None:
    error = refused(
        openai.BadRequestError,
        lambda: site.chat(extra_body={"timeout_ms": 0}),
    )
    equal(error.param, "timeout_ms")


async def of_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        try:
            await client.with_options(timeout=0.02).chat.completions.create(
                model=site.chat_model, messages=MESSAGES
            )
        except openai.APITimeoutError:
            return
    raise AssertionError("answered in time")
