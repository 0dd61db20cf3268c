"""An upstream with a set latency: `… .upstream MODEL LATENCY_MS [LATENCY_MS_MAX PERIOD_S]`.

With the other two arguments, the latency changes between the two values after each period; with a
period of 0 each call has one of its own between them, equally often in each octave.

HTTP/1.1 with keep-alive, implemented with sockets and timers only, so that one core serves more
calls than a client of a benchmark makes. Each call waits on a timer of its own.
"""

import asyncio
import math
import random
import sys
from collections.abc import Callable
from typing import cast

import uvloop

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.data.input_files import SEED, chat_answer

HEAD_BYTES_MAX = 64 * 1024

_LENGTH = b"content-length:"


class UpstreamProtocol(asyncio.Protocol):
    """One connection; the client waits for a response before it sends the next call."""

    def __init__(self, answer: bytes, models: bytes, latency_s: Callable[[], float]) -> None:
        """Answer every POST with `answer` after its latency, every GET with `models` at once."""
        self._answer, self._models, self._latency_s = answer, models, latency_s
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop has a transport class of its own.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received = self._received + data if self._received else data
        while size := call_bytes(self._received):
            posted = self._received.startswith(b"POST")
            self._received = self._received[size:]
            if posted:
                asyncio.get_running_loop().call_later(self._latency_s(), self._send, self._answer)
            else:
                self._send(self._models)

    def _send(self, response: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(response)


def call_bytes(received: bytes) -> int:
    """Return the length of the first complete call in `received`; 0 until it is complete.

    Raises ValueError for a head that is too large.
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
    """Return a complete HTTP response."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def latency_at(low_s: float, high_s: float, period_s: float, *, now_s: float) -> float:
    """Return the latency of calls at a time, if it changes after each period."""
    return high_s if int(now_s / period_s) % 2 else low_s


async def serve(model: str, low_s: float, high_s: float, period_s: float) -> None:
    """Serve until the benchmark closes stdin."""
    rng = random.Random(SEED)
    started_s = asyncio.get_running_loop().time()

    def latency_s() -> float:
        if not period_s:
            return math.exp(rng.uniform(math.log(low_s), math.log(high_s)))
        return latency_at(low_s, high_s, period_s, now_s=loop.time() - started_s)

    answer = response(chat_answer(0))
    models = response(b'{"object":"list","data":[{"id":"%b","object":"model"}]}' % model.encode())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: UpstreamProtocol(answer, models, latency_s), "127.0.0.1", 0, backlog=4096
    )
    report_line("ready", str(server.sockets[0].getsockname()[1]))
    await asyncio.to_thread(wait_for_line)
    server.close()


def main(model: str, latency_ms: str, latency_ms_max: str = "", period_s: str = "0") -> None:
    """Run the server."""
    low_s = float(latency_ms) / 1000
    high_s = float(latency_ms_max or latency_ms) / 1000
    uvloop.run(serve(model, low_s, high_s, float(period_s)))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
