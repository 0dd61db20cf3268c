"""Serve one real vLLM engine on a socket, so that the process of a test never loads vLLM.

`python -m tests.e2e.engine_server SOCKET`, with settings from the environment.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from prometheus_client import REGISTRY

from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS
from core.bodies.body_limits import find_exceeded_limit
from core.runtime.role_lifecycle import report_ready
from gpu_consumers.engines.engine import EmitEvent, Engine, EngineAnswer, UsageMeter
from gpu_consumers.engines.error_answers import body_limit_answer

# A killed test must leave no process behind.
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


T = TypeVar("T")


class CallEnds:
    """How each call ended, including calls whose client has disconnected."""

    def __init__(self, header: str) -> None:
        self._header = header  # identifies a call
        self._ends: dict[str, asyncio.Future[str]] = {}

    async def report(self, request: web.Request) -> web.Response:
        """Respond with how a call ended, once it has; an unknown call was cancelled."""
        end = self._ends.get(request.headers[self._header])
        return web.Response(text="cancelled" if end is None else await end)

    async def recorded(self, request: web.Request, work: Awaitable[T]) -> T:
        """Await the work of a call and record its end."""
        end = self._ends[request.headers[self._header]] = asyncio.get_running_loop().create_future()
        try:
            answer = await work
        except asyncio.CancelledError:
            end.set_result("cancelled")
            raise
        except BaseException:
            end.set_result("failed")
            raise
        end.set_result("answered")
        return answer


async def listening(socket_path: str, routes: Sequence[web.RouteDef]) -> web.AppRunner:
    """Serve these routes until the runner is cleaned up."""
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_routes(routes)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, socket_path).start()
    return runner


def kv_cache_usage() -> float:
    """Return the share of the KV cache in use, as the replica's metric tells."""
    return REGISTRY.get_sample_value("millrace_engine_kv_usage") or 0.0


async def set_item_timeout(engine: Any, request: web.Request) -> web.Response:
    """Change the limit of one item's execution, so that no test starts another engine."""
    limit_s = float(await request.text())
    engine._serving._item_timeout_s = engine._serving._timeout._limit_s = limit_s
    return web.Response()


async def serve_limited(
    engine: Engine, endpoint: str, body: bytes, emit: EmitEvent | None, meter: UsageMeter
) -> EngineAnswer:
    """Serve a call as a replica does, which checks its body before."""
    if exceeded := find_exceeded_limit(body, DEFAULT_BODY_LIMITS):
        return body_limit_answer(exceeded)
    return await engine.serve(endpoint, body, emit, meter)


async def until_sigterm() -> None:
    """Wait for the signal that ends the server."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


async def execute(engine: Engine, ends: CallEnds, request: web.Request) -> web.StreamResponse:
    """Run the bodies of a request; each line of the response is one reported item."""
    endpoint, bodies = msgspec.msgpack.decode(await request.read(), type=tuple[str, list[bytes]])
    response = web.StreamResponse()
    await response.prepare(request)
    reported: asyncio.Queue[tuple[int, EngineAnswer] | None] = asyncio.Queue()

    async def run() -> None:
        work = engine.execute(endpoint, bodies, lambda *item: reported.put_nowait(item))
        await ends.recorded(request, work)
        reported.put_nowait(None)

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
        while (item := await reported.get()) is not None:
            await response.write(msgspec.json.encode(item) + b"\n")
    return response


async def serve(socket_path: str) -> None:
    """Serve once the model is loaded."""
    from gpu_consumers.engines.open_engine import open_engine
    from gpu_consumers.engines.settings import EngineSettings
    from gpu_consumers.engines.vllm.vllm_engine import VllmEngine
    from tests.e2e.remote_engine import BEGUN, CALL

    engine = open_engine(EngineSettings.from_env(os.environ))
    ends, meters = CallEnds(CALL), deque[UsageMeter](maxlen=1)

    async def online(request: web.Request) -> web.StreamResponse:
        endpoint, body, streams = msgspec.msgpack.decode(
            await request.read(), type=tuple[str, bytes, bool]
        )
        response = web.StreamResponse()
        await response.prepare(request)
        emitted: asyncio.Queue[bytes | EngineAnswer] = asyncio.Queue()
        meter = UsageMeter(lambda: emitted.put_nowait(BEGUN))
        meters.append(meter)

        async def run() -> None:
            emit = emitted.put_nowait if streams else None
            work = serve_limited(engine, endpoint, body, emit, meter)
            emitted.put_nowait(await ends.recorded(request, work))

        async with asyncio.TaskGroup() as group:
            group.create_task(run())
            while isinstance(part := await emitted.get(), bytes):
                spent = msgspec.json.encode(meter.with_usage(EngineAnswer(0, b"")))
                await response.write(part if part is BEGUN else b"#%b\n%b\n" % (spent, part))
            await response.write(msgspec.json.encode([part]) + b"\n")
        return response

    async def counts(_: web.Request) -> web.Response:
        unfinished = engine.unfinished if isinstance(engine, VllmEngine) else 0
        return web.Response(body=msgspec.json.encode((engine.slots, unfinished, kv_cache_usage())))

    async def spent(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(meters[-1].with_usage(EngineAnswer(0, b""))))

    await engine.start()
    routes = [
        web.post("/", partial(execute, engine, ends)),
        web.post("/online", online),
        web.get("/counts", counts),
        web.get("/spent", spent),
        web.get("/end", ends.report),
        web.put("/item_timeout", partial(set_item_timeout, engine)),
    ]
    report_ready()  # as a replica does: tunes the garbage collector
    runner = await listening(socket_path, routes)
    await until_sigterm()
    await runner.cleanup()
    await engine.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
    os._exit(0)  # as a replica does: without clean-up of the interpreter
