"""Answers of online calls in raw ASGI."""

import asyncio
from collections.abc import Iterator
from typing import Final

from starlette.types import Message

from api.answers import ApiError, error_body
from api.online.calls import Finished, RawHeaders
from api.online.exchange import Exchange

JSON = (b"content-type", b"application/json")

BLOCK_BYTES: Final = 64 * 1024
"""A longer body goes out in blocks, as its reader takes them: more would lie in the transport."""


async def send_finished(exchange: Exchange, answer: Finished) -> None:
    """Send a whole answer: JSON, unless its headers say otherwise.

    A reader that holds up a block for longer than `slow_reader_s` is dropped. Raises ApiError,
    before anything is sent, when too many large answers wait for their readers.
    """
    if exchange.recording is not None:
        await exchange.recording.close()  # it is no stream: its key is free before it is told
    if len(answer.body) <= BLOCK_BYTES:
        await _send(exchange, answer)
        return
    with exchange.hold_answer(len(answer.body)):
        await _send(exchange, answer)


def finished_error(error: ApiError, headers: RawHeaders) -> Finished:
    """Return an error in its envelope, with the headers of the call."""
    own = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return Finished(error.status, error_body(error), [*headers, *own])


async def _send(exchange: Exchange, answer: Finished) -> None:
    """Send it; no timer is needed as long as nothing of it waits."""
    send, connection = exchange.send, exchange.connection
    try:
        for message in _messages(answer):
            if connection.is_behind:
                async with asyncio.timeout(exchange.readers.slow_reader_s):
                    await send(message)
            else:
                await send(message)
    except TimeoutError:
        connection.drop()


def _messages(answer: Finished) -> Iterator[Message]:
    body, size = answer.body, len(answer.body)
    typed = any(name == JSON[0] for name, _ in answer.headers)
    yield {
        "type": "http.response.start",
        "status": answer.status,
        "headers": [
            *(() if typed else (JSON,)),
            (b"content-length", b"%d" % size),
            *answer.headers,
        ],
    }
    sent = 0
    while size - sent > BLOCK_BYTES:
        block = body[sent : sent + BLOCK_BYTES]
        yield {"type": "http.response.body", "body": block, "more_body": True}
        sent += BLOCK_BYTES
    yield {"type": "http.response.body", "body": body[sent:] if sent else body}
