"""Answers of unknown length to clients of HTTP/1.0, which know no chunks: their end is the close.

Some proxies speak 1.0 to what is behind them unless they are told otherwise.
"""

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def delimit_body_by_close(cycle: RequestResponseCycle) -> None:
    """Let `cycle`, of a request in HTTP/1.0 that has not begun, send what has no length as it is.

    uvicorn would send chunks. It keeps no such connection, so the close tells the end.
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
            await _write(cycle, message)

    cycle.send = send_plain  # type: ignore[method-assign, assignment]


async def _write(cycle: RequestResponseCycle, message: Message) -> None:
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
