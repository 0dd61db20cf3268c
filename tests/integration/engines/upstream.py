"""A small server of the OpenAI shape, with faults that a test chooses by request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from core.clock import SystemClock
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.openai_http.openai_http_engine import OpenAIHttpEngine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.simulated.simulated_engine import SimulatedEngine

Respond = Callable[[web.Request, bytes], Awaitable[web.StreamResponse | None]]


class Upstream:
    """Answers as the simulated engine does, unless `respond` answers first.

    What is no item, but a question whether it is there, goes to `respond` where it is `all_away`.
    """

    def __init__(
        self,
        model: str,
        *,
        latency_s: float = 0.0,
        respond: Respond | None = None,
        all_away: bool = False,
    ) -> None:
        self.all_away = all_away
        self.received: list[tuple[web.Request, bytes]] = []
        self.running = 0
        self.running_max = 0
        self._latency_s = latency_s
        self._respond = respond
        self._engine = SimulatedEngine(
            model, latency_ms=0, slots=EngineSlots(256), clock=SystemClock()
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.method == "GET":
            responds = self._respond if self.all_away else None
            unavailable = await responds(request, body) if responds else None
            return unavailable or web.json_response({"object": "list", "data": []})
        self.received.append((request, body))
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await asyncio.sleep(self._latency_s)
            given = await self._respond(request, body) if self._respond else None
            return given or await self._simulate(request, body)
        finally:
            self.running -= 1

    async def _simulate(self, request: web.Request, body: bytes) -> web.StreamResponse:
        events = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        emitted: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def serve() -> EngineAnswer:
            try:
                return await self._engine.serve(request.path, body, emitted.put_nowait)
            finally:
                emitted.put_nowait(None)

        async with asyncio.TaskGroup() as group:
            serving = group.create_task(serve())
            while (piece := await emitted.get()) is not None:
                if not events.prepared:
                    await events.prepare(request)
                await events.write(b"data: %b\n\n" % piece)
        answer = serving.result()
        if events.prepared:
            await events.write(b"data: [DONE]\n\n")
            return events
        return web.Response(
            status=answer.status_code, body=answer.body, content_type="application/json"
        )


@asynccontextmanager
async def serve(upstream: Upstream) -> AsyncIterator[str]:
    """Run the server and yield its base URL."""
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", upstream.handle)
    runner = web.AppRunner(
        application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def engine_of(url: str, **fields: object) -> AsyncIterator[OpenAIHttpEngine]:
    """Start an engine for the upstream at `url`, and stop it after the block."""
    engine = OpenAIHttpEngine(http_settings(url, **fields))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def engine_for(upstream: Upstream, **fields: object) -> AsyncIterator[OpenAIHttpEngine]:
    """Run an upstream, and an engine for it."""
    async with serve(upstream) as url, engine_of(url, **fields) as engine:
        yield engine


def http_settings(url: str, **fields: object) -> EngineSettings:
    return EngineSettings.model_validate(
        {"kind": "openai_http", "model_name": "m", "upstream": url, "interactive_headroom": 0}
        | fields
    )
