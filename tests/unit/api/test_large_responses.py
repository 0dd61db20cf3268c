"""Goal: large JSON responses share the memory limit of online calls until they are read."""

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from api.auth.authentication import TenantRequest
from api.batches import single_request_routes
from api.files import file_routes
from api.http.errors import ApiError
from api.http.middleware import request_exit_stack
from api.online.memory_limits import LARGE_BYTES, ResponseMemoryLimit
from core.ids import SINGLE, new_uuid, public_id
from core.outcomes import Outcome
from core.states import JobState
from jobs.store.keyset_pages import Page, PageCursor
from tenancy.api_keys import Principal

ME = Principal(new_uuid(), new_uuid())


class Site:
    """Services whose database says one thing, and room for two answers, one a tenant."""

    def __init__(self, found: object, answer_bytes: int) -> None:
        self._found = found
        limit = ResponseMemoryLimit(2 * answer_bytes)
        self.services: Any = SimpleNamespace(database=self, response_limit=limit)

    async def run_for_tenant(self, *_: object, **__: object) -> object:
        return self._found

    def request(self) -> TenantRequest:
        app = SimpleNamespace(state=SimpleNamespace(online=None))
        scope = {"type": "http", "app": app, "millrace.exit_stack": ExitStack()}
        return TenantRequest(Request(scope), ME, self.services)


def job(body: bytes) -> Any:
    moments = dict.fromkeys(single_request_routes._TIMESTAMPS)
    counts = dict.fromkeys(
        ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"), 1
    )
    return SimpleNamespace(
        id=new_uuid(),
        state=JobState.COMPLETED,
        endpoint="/v1/embeddings",
        model="m",
        model_version="1",
        status_code=200,
        outcome=Outcome.SUCCEEDED,
        body=body,
        body_key=None,
        **moments,
        **counts,
    )


def file() -> Any:
    return SimpleNamespace(
        id=new_uuid(),
        size_bytes=1,
        created_at=None,
        expires_at=None,
        filename="x" * 200,
        purpose="batch",
    )


async def show_job(request: TenantRequest) -> Any:
    return await single_request_routes.show(public_id(SINGLE, new_uuid()), request)


async def cancel_job(request: TenantRequest) -> Any:
    return await single_request_routes.cancel(public_id(SINGLE, new_uuid()), request)


async def list_files(request: TenantRequest) -> Any:
    return await file_routes.show_list(request, PageCursor(limit=10_000))


LARGE = b'"%b"' % (b"x" * LARGE_BYTES)
PAGE = Page([file() for _ in range(400)], has_more=False)


@pytest.mark.parametrize(
    ("found", "ask"), [(job(LARGE), show_job), (job(LARGE), cancel_job), (PAGE, list_files)]
)
async def test_a_large_response_reserves_memory_until_it_is_sent(
    found: object, ask: Callable[[TenantRequest], Any]
) -> None:
    answer = await ask(Site(found, 1 << 20).request())
    assert len(answer.body) > LARGE_BYTES
    site = Site(found, len(answer.body))
    first = site.request()
    await ask(first)
    with pytest.raises(ApiError) as refused:
        await ask(site.request())
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    request_exit_stack(first.http.scope).close()
    await ask(site.request())


@pytest.mark.parametrize(("found", "ask"), [(job(b"1"), show_job), (Page([], False), list_files)])
async def test_a_small_response_reserves_none(
    found: object, ask: Callable[[TenantRequest], Any]
) -> None:
    assert (await ask(Site(found, 0).request())).status_code == 200
