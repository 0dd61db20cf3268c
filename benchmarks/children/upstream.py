"""An upstream that answers after a set time: `python -m benchmarks.children.upstream MODEL LATENCY_MS`.

HTTP/1.1 with kept connections, nothing but sockets and timers, so that a core of it serves more
calls than any client of ours makes. It waits without blocking: every call has a timer of its own.
"""

import asyncio
import sys
from typing import cast

import uvloop

from benchmarks.children.line_child import die_with_parent, say, wait_for_line
from benchmarks.data.input_files import chat_answer

HEAD_BYTES_MAX = 64 * 1024

_LENGTH = b"content-length:"


class Calls(asyncio.Protocol):
    """One connection; its client waits for an answer before it sends the next call."""

    def __init__(self, answer: bytes, models: bytes, latency_s: float) -> None:
        """Answer every POST with `answer` after `latency_s`, every GET with `models` at once."""
        self._answer, self._models, self._latency_s = answer, models, latency_s
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is of its own kind

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received = self._received + data if self._received else data
        while size := call_bytes(self._received):
            posted = self._received.startswith(b"POST")
            self._received = self._received[size:]
            if posted:
                asyncio.get_running_loop().call_later(self._latency_s, self._send, self._answer)
            else:
                self._send(self._models)

    def _send(self, response: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(response)


def call_bytes(received: bytes) -> int:
    """Return the length of the first whole call in `received`; 0 until it is whole.

    Raises ValueError for a head without end.
    """
    end = received.find(b"\r\n\r\n")
    if end < 0:
        if len(received) > HEAD_BYTES_MAX:
            raise ValueError("the head is too large")
        return 0
    head = received[:end].lower()
    at = head.find(_LENGTH)
    body = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
    size = end + 4 + body
    return size if len(received) >= size else 0


def response(body: bytes) -> bytes:
    """Return a whole HTTP response."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def serve(model: str, latency_s: float) -> None:
    """Serve until the benchmark has no more to say."""
    answer = response(chat_answer(0))
    models = response(b'{"object":"list","data":[{"id":"%b","object":"model"}]}' % model.encode())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Calls(answer, models, latency_s), "127.0.0.1", 0, backlog=4096
    )
    say("ready", str(server.sockets[0].getsockname()[1]))
    await asyncio.to_thread(wait_for_line)
    server.close()


def main(model: str, latency_ms: str) -> None:
    """Serve."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(serve(model, float(latency_ms) / 1000))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
