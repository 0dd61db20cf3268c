"""Goal: a crash is answered with the error envelope, without details, and logged.

The same holds for a request that a shutdown cancels.
"""

import asyncio
import logging

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.errors import install_error_handlers
from api.http.middleware import RequestEnvelope

SECRET = "what a client sent"


def application() -> ASGIApp:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/crash")
    async def crash() -> None:
        raise ValueError(SECRET)

    return enveloped(app)


def enveloped(app: ASGIApp) -> ASGIApp:
    return RequestEnvelope(app, in_flight_max=5, online_in_flight_max=5)


def client(app: ASGIApp | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app or application(), raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def test_a_crash_is_answered_in_the_envelope(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        async with client() as asking:
            answer = await asking.get("/crash")

    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.json()["error"]["code"] == "internal"
    (record,) = caplog.records
    assert vars(record)["error"] == "ValueError"
    assert SECRET not in str(vars(record)) + answer.text


async def cut(*, begins: bool) -> httpx.Response:
    """Ask what never ends, and cancel it as a server does whose grace is over."""
    waits = asyncio.Event()

    async def endless(_: Scope, __: Receive, send: Send) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        waits.set()
        await asyncio.Event().wait()

    async with client(enveloped(endless)) as asking:
        running = asyncio.create_task(asking.get("/"))
        await waits.wait()
        running.cancel()
        return await running


async def test_a_request_cancelled_by_a_restart_is_answered() -> None:
    answer = await cut(begins=False)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.json()["error"]["code"] == "server_restarting"


async def test_a_response_cancelled_by_a_restart_closes_the_connection() -> None:
    with pytest.raises(asyncio.CancelledError):
        await cut(begins=True)
