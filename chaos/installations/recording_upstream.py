"""An upstream that records when each item starts and is answered, by Postgres's clock."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from chaos.checkers.executions import ItemEvent

LATENCY_S: Final = 0.05
_START_S_MAX: Final = 10.0


class RecordingUpstream:
    """Echoes the text of every chat completion after a delay and records the times."""

    def __init__(self) -> None:
        """Create an empty record; `recording_upstream` serves it."""
        self.url = ""
        self._starts: list[ItemEvent] = []
        self._answers: list[ItemEvent] = []

    def starts(self, name: str) -> list[ItemEvent]:
        """Return the executions of items whose text starts with `name` and a space."""
        return [event for event in list(self._starts) if event.item.startswith(f"{name} ")]

    def answers(self, name: str) -> list[ItemEvent]:
        """Return the answers to items of that name, whether or not the caller received them."""
        return [event for event in list(self._answers) if event.item.startswith(f"{name} ")]

    async def handle(self, request: web.Request) -> web.Response:
        """Serve one request."""
        started_s = time.time()  # before the body is read: a delay here is not the sender's
        if request.method == "GET":
            return web.json_response({"object": "list", "data": []})
        body = await request.json()
        text = body["messages"][0]["content"]
        self._starts.append(ItemEvent(started_s, text))
        await asyncio.sleep(LATENCY_S)
        self._answers.append(ItemEvent(time.time(), text))
        given, granted = len(text), body["max_tokens"]
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": given, "completion_tokens": granted}
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {**usage, "total_tokens": given + granted},
        }
        return web.json_response(answer)


@contextmanager
def recording_upstream() -> Iterator[RecordingUpstream]:
    """Serve a `RecordingUpstream` in a thread for a block."""
    upstream = RecordingUpstream()
    with serve_in_thread(upstream.handle) as upstream.url:
        yield upstream


@contextmanager
def serve_in_thread(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> Iterator[str]:
    """Serve every request with `handle`, on an event loop in a thread; yield the base URL.

    A caller that disconnects cancels its request. Raises TimeoutError.
    """
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def serve() -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(
            application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    if not ready.wait(_START_S_MAX):
        raise TimeoutError("the upstream does not listen")
    try:
        yield urls[0]
    finally:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        thread.join(_START_S_MAX)
        loop.close()
