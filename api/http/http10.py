"""Responses of unknown length to HTTP/1.0 clients, which do not support chunked encoding.

The end of such a response is the close of the connection. Some proxies use HTTP/1.0 by default.
"""

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def delimit_body_by_close(cycle: RequestResponseCycle) -> None:
    """Send responses of `cycle`, an HTTP/1.0 request, without chunked encoding.

    uvicorn would send chunks. It closes every such connection, which marks the end.
    """
    send = cycle.send
    has_length = False

    async def send_plain(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if has_length else False
            await send(message)  # type: ignore[arg-type]
        elif has_length or cycle.scope["method"] == "HEAD":
            await send(message)  # type: ignore[arg-type]
        else:
            await _write_plain(cycle, message)

    cycle.send = send_plain  # type: ignore[method-assign, assignment]


async def _write_plain(cycle: RequestResponseCycle, message: Message) -> None:
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.transport.write(message.get("body", b""))
    if not message.get("more_body", False):
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.transport.close()
        cycle.on_response()
