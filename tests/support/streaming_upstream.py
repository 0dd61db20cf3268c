"""An upstream that streams numbered pieces and records each execution."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from aiohttp import web

from chaos.installations.recording_upstream import serve_in_thread


class StreamingUpstream:
    """Streams `max_tokens` pieces, `0`, `1` and so on, one each `token_s`.

    An answer without streaming takes as long. The id of a piece names its execution, so a client
    can detect pieces of two executions.
    """

    def __init__(self, token_s: float) -> None:
        self.token_s = token_s
        self.url = ""
        self._numbers = count()
        self._executions: list[tuple[str, str]] = []

    def executions(self, text: str) -> list[str]:
        """Return the ids of all executions of calls with this text, in order."""
        return [name for name, of in list(self._executions) if of == text]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"object": "list", "data": []})
        body = await request.json()
        name = f"chatcmpl-{next(self._numbers)}"
        self._executions.append((name, body["messages"][0]["content"]))
        tokens = body["max_tokens"]
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        if not body.get("stream"):
            await asyncio.sleep(tokens * self.token_s)
            message = {"role": "assistant", "content": "0"}
            return web.json_response({**_answer(name, body, "", message=message), "usage": usage})
        events = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await events.prepare(request)
        for number in range(tokens):
            delta = {"role": "assistant", "content": str(number)}
            await events.write(_event(_answer(name, body, ".chunk", delta=delta)))
            await asyncio.sleep(self.token_s)
        await events.write(b"data: [DONE]\n\n")
        return events


def _answer(name: str, body: dict[str, Any], kind: str, **said: object) -> dict[str, Any]:
    return {
        "id": name,
        "object": f"chat.completion{kind}",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "finish_reason": None if kind else "stop", **said}],
    }


def _event(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


@contextmanager
def streaming_upstream(token_s: float) -> Iterator[StreamingUpstream]:
    """Serve in a thread for a block."""
    upstream = StreamingUpstream(token_s)
    with serve_in_thread(upstream.handle) as upstream.url:
        yield upstream
