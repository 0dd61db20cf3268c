"""Complete responses of online calls, sent as raw ASGI messages."""

from typing import Final

from api.http.responses import ApiError, error_body
from api.online.calls import CompleteResponse, RawHeaders
from api.online.memory_limits import LARGE_BYTES
from api.online.receive.exchange import Exchange

_JSON: Final = (b"content-type", b"application/json")


async def send_response(exchange: Exchange, response: CompleteResponse) -> None:
    """Send a response, as JSON unless its headers name another type.

    The middleware waits until the client has read it. Raises ApiError, before anything is sent,
    when large responses of slow clients exceed their memory limit.
    """
    if exchange.recording is not None:
        await exchange.recording.close()  # not a stream: free its key before the client knows
    if len(response.body) <= LARGE_BYTES:
        await _send(exchange, response)
        return
    with exchange.reserve_response_memory(len(response.body)):
        await _send(exchange, response)


def error_as_response(error: ApiError, headers: RawHeaders) -> CompleteResponse:
    """Return an error in its JSON envelope, with the headers of the call."""
    own = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return CompleteResponse(error.status, error_body(error), [*headers, *own])


async def _send(exchange: Exchange, response: CompleteResponse) -> None:
    has_type = any(name == _JSON[0] for name, _ in response.headers)
    headers = [
        *(() if has_type else (_JSON,)),
        (b"content-length", b"%d" % len(response.body)),
        *response.headers,
    ]
    head = {"type": "http.response.start", "status": response.status, "headers": headers}
    await exchange.send(head)
    await exchange.send({"type": "http.response.body", "body": response.body})
