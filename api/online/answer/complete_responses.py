"""Answers of online calls in raw ASGI."""

from typing import Final

from api.http.responses import ApiError, error_body
from api.online.admit.readers import LARGE_BYTES
from api.online.calls import CompleteResponse, RawHeaders
from api.online.receive.exchange import Exchange

_JSON: Final = (b"content-type", b"application/json")


async def send_response(exchange: Exchange, answer: CompleteResponse) -> None:
    """Send a whole answer: JSON, unless its headers say otherwise.

    The envelope around it waits for its reader. Raises ApiError, before anything is sent, when too
    many large answers wait for theirs.
    """
    if exchange.recording is not None:
        await exchange.recording.close()  # it is no stream: its key is free before it is told
    if len(answer.body) <= LARGE_BYTES:
        await _send(exchange, answer)
        return
    with exchange.hold_answer(len(answer.body)):
        await _send(exchange, answer)


def error_as_response(error: ApiError, headers: RawHeaders) -> CompleteResponse:
    """Return an error in its envelope, with the headers of the call."""
    own = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return CompleteResponse(error.status, error_body(error), [*headers, *own])


async def _send(exchange: Exchange, answer: CompleteResponse) -> None:
    typed = any(name == _JSON[0] for name, _ in answer.headers)
    headers = [
        *(() if typed else (_JSON,)),
        (b"content-length", b"%d" % len(answer.body)),
        *answer.headers,
    ]
    head = {"type": "http.response.start", "status": answer.status, "headers": headers}
    await exchange.send(head)
    await exchange.send({"type": "http.response.body", "body": answer.body})
