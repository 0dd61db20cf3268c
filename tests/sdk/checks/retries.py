"""The client retries by itself when and after the delay that the server requests."""

import time
from dataclasses import replace
from functools import partial

import openai

from tests.sdk.checks.site import RATE_TOKENS, Site, equal, refused


def after_503(site: Site) -> None:
    """No replica serves the model: the client waits for the requested delay, then fails."""

    ask = partial(refused, openai.InternalServerError, site.raw_chat, model=site.idle_model)
    error = ask()
    equal((error.status_code, error.code), (503, "no_capacity"))
    equal(error.type, "service_unavailable_error")
    wait_s = int(error.response.headers["retry-after"])
    equal(1 <= wait_s <= 60, True)
    started_s = time.monotonic()
    error = ask(max_retries=1)
    equal(error.response.request.headers["x-stainless-retry-count"], "1")
    equal(time.monotonic() - started_s >= wait_s, True)


def after_429(site: Site) -> None:
    """A stream with a high token limit reserves the tenant's whole rate of a minute.

    A tenth of it is refilled in six seconds, which is longer than a slow client takes to its next
    call.
    """
    busy = replace(site, key=site.busy_key)
    with busy.chat(max_tokens=RATE_TOKENS, stream=True) as stream:
        next(stream)
        error = refused(openai.RateLimitError, busy.chat, max_tokens=RATE_TOKENS // 10)
        equal(error.code, "rate_limit_exceeded")
        equal(1 <= int(error.response.headers["retry-after"]) <= 7, True)
        raw = busy.raw_chat(2, max_tokens=RATE_TOKENS // 10)
        equal((raw.status_code, raw.retries_taken), (200, 1))
