"""An upstream that records the start of each item by this host's clock, as Postgres does."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from chaos.installations.recording_upstream import serve_in_thread

TOKENS = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}

_POLL_S: Final = 0.01


@dataclass
class Gate:
    """Lets the first `left` items pass, and the others once it is open."""

    left: int
    is_open: bool = False

    async def passed(self) -> None:
        """Return when one more item may be answered."""
        if self.left > 0:
            self.left -= 1
            return
        while not self.is_open:  # noqa: ASYNC110 - another thread opens it
            await asyncio.sleep(_POLL_S)


class RecordingUpstream:
    """Answers chat completions after `latency_s`; those whose text holds `fail` with 400."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self.url = ""
        self._starts: list[tuple[float, str]] = []
        self._gates: dict[str, Gate] = {}

    def starts(self, name: str) -> list[float]:
        """Return when items started whose text starts with `name`, seconds since the epoch."""
        return [at_s for at_s, text in list(self._starts) if text.startswith(f"{name} ")]

    @contextmanager
    def holding(self, name: str, *, after: int = 0) -> Iterator[None]:
        """Delay answers to items whose text starts with `name`, but for the first `after`.

        The items keep their slots in the engine.
        """
        gate = self._gates[name] = Gate(after)
        try:
            yield
        finally:
            gate.is_open = True
            del self._gates[name]

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"object": "list", "data": []})
        began_s = time.time()
        body = await request.json()
        text = body["messages"][0]["content"]
        self._starts.append((began_s, text))
        if (gate := self._gates.get(text.partition(" ")[0])) is not None:
            await gate.passed()
        await asyncio.sleep(self.latency_s)
        if "fail" in text:
            error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=400)
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [choice],
            "usage": TOKENS,
        }
        return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


@contextmanager
def recording_upstream(latency_s: float) -> Iterator[RecordingUpstream]:
    """Serve in a thread for a block."""
    upstream = RecordingUpstream(latency_s)
    with serve_in_thread(upstream.handle) as upstream.url:
        yield upstream
