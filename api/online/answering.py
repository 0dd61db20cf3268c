"""Answers of online calls in raw ASGI."""

from starlette.types import Send

from api.answers import ApiError, error_body
from api.online.calls import Finished, RawHeaders

JSON = (b"content-type", b"application/json")


async def send_finished(send: Send, answer: Finished) -> None:
    """Send a whole answer: JSON, unless its headers say otherwise."""
    typed = any(name == JSON[0] for name, _ in answer.headers)
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [
                *(() if typed else (JSON,)),
                (b"content-length", b"%d" % len(answer.body)),
                *answer.headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": answer.body})


def finished_error(error: ApiError, headers: RawHeaders) -> Finished:
    """Return an error in its envelope, with the headers of the call."""
    own = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return Finished(error.status, error_body(error), [*headers, *own])
