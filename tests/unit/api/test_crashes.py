"""Goal: a defect of ours is answered in the envelope, tells nothing, and is found in the log."""

import logging

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp

from api.errors import install_error_answers
from api.middleware import RequestEnvelope

SECRET = "what a client sent"


def application() -> ASGIApp:
    app = FastAPI()
    install_error_answers(app)

    @app.get("/crash")
    async def crash() -> None:
        raise ValueError(SECRET)

    @app.get("/break")
    async def break_off() -> StreamingResponse:
        async def pieces() -> object:
            yield b"begun"
            raise ValueError(SECRET)

        return StreamingResponse(pieces())  # type: ignore[arg-type]

    return RequestEnvelope(app, in_flight_max=5, online_in_flight_max=5)


def client() -> httpx.AsyncClient:
    transport = httpx.ASGITransport(application(), raise_app_exceptions=True)
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


async def test_an_answer_that_breaks_off_ends_its_connection() -> None:
    with pytest.raises(ConnectionAbortedError):
        async with client() as asking:
            await asking.get("/break")
