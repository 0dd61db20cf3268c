"""Errors become the client's exceptions, with all fields of the wire format."""

import openai

from tests.sdk.checks.site import Site, equal, refused


def wrong_key(site: Site) -> None:
    client = site.client.with_options(api_key="sk-wrong")
    error = refused(openai.AuthenticationError, client.models.list)
    equal((error.status_code, error.code), (401, "invalid_api_key"))


def unknown_route(site: Site) -> None:
    error = refused(openai.NotFoundError, site.client.fine_tuning.jobs.list)
    equal(error.type, "invalid_request_error")


def invalid_body(site: Site) -> None:
    error = refused(
        openai.BadRequestError,
        lambda: site.client.batches.create(
            input_file_id="file-x", endpoint="/v1/embeddings", completion_window="24h"
        ),
    )
    equal((error.status_code, error.param), (400, "input_file_id"))
    equal(error.type, "invalid_request_error")
    equal(bool(error.request_id), True)
    equal(error.request_id, error.response.headers["x-request-id"])
    equal(sorted(error.body), ["code", "message", "param", "type"])


def invalid_parameter(site: Site) -> None:
    error = refused(openai.BadRequestError, lambda: site.client.batches.list(limit=0))
    equal(error.param, "limit")


def exhausted_quota(site: Site) -> None:
    """Refused once: `x-should-retry: false` keeps the client from retrying."""
    client = site.client.with_options(api_key=site.poor_key, max_retries=2)
    error = refused(
        openai.RateLimitError, lambda: client.files.create(file=b"x" * 100, purpose="batch")
    )
    equal((error.type, error.code), ("insufficient_quota", "storage_limit_exceeded"))
    equal(error.response.request.headers["x-stainless-retry-count"], "0")


async def through_the_async_client(site: Site) -> None:
    async with site.async_client as client:
        try:
            await client.batches.retrieve("batch_" + "0" * 32)
        except openai.NotFoundError as error:
            equal(error.code, "batch_not_found")
            return
    raise AssertionError("not refused")
