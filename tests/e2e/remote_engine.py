"""The client of `engine_server`: an engine whose work runs in the child process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import aiohttp
import msgspec
import psutil

from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, OnAnswer, SlotCounts, UsageMeter
from gpu_consumers.engines.engine_slots import square_root_headroom
from tests.integration.engines.conformance import MODEL
from tests.support.until import until
from tests.support.vllm_programs import VllmProgram, start_program

VLLM_ENV = {"KIND": "vllm", "MODEL_NAME": MODEL, "CONCURRENCY": "20", "VLLM_MAX_NUM_SEQS": "16"}
"""Settings of an engine of real vLLM, without the model."""

_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 60.0

BEGUN = b"!\n"
"""The line that reports that a call has a slot."""

CALL = "X-Call"
"""The header that identifies a call."""

CANCELLED = "cancelled"
"""The end of a cancelled call."""


class RemoteEngine:
    """Forwards calls; cancelling one closes its connection, which cancels it in the child.

    A cancelled call returns once the child has ended it; it fails if the child answered it.
    """

    engine_hash, adapters = "", ()

    def __init__(
        self, socket_path: Path, concurrency: int, children: Sequence[psutil.Process]
    ) -> None:
        self._socket_path = socket_path
        self._concurrency = concurrency
        self.children = children
        """The processes that the child's engine has started."""

    def memory_bytes(self) -> int:
        """Return the resident memory of the child and its processes."""
        parent = psutil.Process(self.children[0].ppid())
        return sum(int(process.memory_info().rss) for process in (parent, *self.children))

    @property
    def concurrency(self) -> int:
        return self._concurrency

    @property
    def bulk_concurrency(self) -> int:
        return self.concurrency - self.headroom

    @property
    def headroom(self) -> int:
        return square_root_headroom(self._concurrency)

    @property
    def slots(self) -> SlotCounts:
        raise NotImplementedError("use fetch_slots")

    async def fetch_slots(self) -> SlotCounts:
        """Return the child's counters; sequences that vLLM still holds count as online."""
        slots, unfinished, _ = await self._fetch_counts()
        return SlotCounts(slots.bulk, max(slots.online, unfinished), slots.waiting)

    async def fetch_unfinished(self) -> int:
        """Return the number of sequences that vLLM holds."""
        _, unfinished, _ = await self._fetch_counts()
        return unfinished

    async def fetch_spent(self) -> EngineAnswer:
        """Return what the meter of the newest call reports."""
        async with self._session() as session, session.get("http://engine/spent") as answer:
            return msgspec.json.decode(await answer.read(), type=EngineAnswer)

    async def fetch_kv_cache_usage(self) -> float:
        """Return the share of vLLM's KV cache in use."""
        _, _, usage = await self._fetch_counts()
        return usage

    async def set_item_timeout(self, limit_s: float) -> None:
        """Change the child's limit of one item's execution."""
        async with (
            self._session() as session,
            session.put("http://engine/item_timeout", data=str(limit_s)) as answer,
        ):
            answer.raise_for_status()

    async def start(self) -> None:
        """The child has started already."""

    async def stop(self) -> None:
        """`running_engine` stops the child."""

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        request = msgspec.msgpack.encode((endpoint, bodies))
        async with self._post("", request) as lines:
            async for line in lines.content:
                finished(*msgspec.json.decode(line, type=tuple[int, EngineAnswer]))

    async def serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None = None,
        adapter: str = "",
    ) -> EngineAnswer:
        request = msgspec.msgpack.encode((endpoint, body, emit is not None))
        async with self._post("online", request) as lines:
            async for line in lines.content:
                if line.startswith(b"["):
                    return msgspec.json.decode(line, type=tuple[EngineAnswer])[0]
                if line == BEGUN:
                    if meter is not None:
                        meter.on_start()
                    continue
                if line.startswith(b"#"):
                    _update_meter(meter, msgspec.json.decode(line[1:], type=EngineAnswer))
                    continue
                assert emit is not None
                emit(line.removesuffix(b"\n"))
        raise ConnectionError("no answer")

    @asynccontextmanager
    async def _post(self, path: str, request: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        call = uuid4().hex
        try:
            async with (
                self._session() as session,
                session.post(
                    f"http://engine/{path}", data=BytesIO(request), headers={CALL: call}
                ) as lines,
            ):
                yield lines
        except asyncio.CancelledError:
            async with (
                self._session() as session,
                session.get("http://engine/end", headers={CALL: call}) as end,
            ):
                assert await end.text() == CANCELLED
            raise

    async def _fetch_counts(self) -> tuple[SlotCounts, int, float]:
        async with self._session() as session, session.get("http://engine/counts") as answer:
            return msgspec.json.decode(await answer.read(), type=tuple[SlotCounts, int, float])

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.UnixConnector(str(self._socket_path), limit=0)
        return aiohttp.ClientSession(connector=connector, read_bufsize=2**24)


def _update_meter(meter: UsageMeter | None, spent: EngineAnswer) -> None:
    if meter is not None:
        meter.with_usage = lambda answer: msgspec.structs.replace(
            spent, status_code=answer.status_code, body=answer.body
        )


@contextmanager
def running_engine(folder: Path, env: Mapping[str, str]) -> Iterator[RemoteEngine]:
    """Start the child and wait for its socket; stop all of its processes at the end."""
    socket_path, log_path = folder / "engine.sock", folder / "engine.log"
    with log_path.open("wb") as log:
        child = start_program(
            "tests.e2e.engine_server",
            [str(socket_path)],
            os.environ | {f"MILLRACE_ENGINE_{name}": value for name, value in env.items()},
            output=log,
            errors=log,
        )
    family = [psutil.Process(child.pid)]
    try:
        _wait_for(socket_path, child, log_path)
        family += family[0].children(recursive=True)
        yield RemoteEngine(socket_path, int(env["CONCURRENCY"]), family[1:])
    finally:
        child.send_signal(signal.SIGTERM)
        if child.wait(_STOP_TIMEOUT_S) is None:
            child.send_signal(signal.SIGKILL)
            child.wait(_STOP_TIMEOUT_S)
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive, [process.pid for process in alive]
    assert child.returncode == 0, log_path.read_text()[-4000:]


def _wait_for(socket_path: Path, child: VllmProgram, log_path: Path) -> None:
    def has_started() -> bool:
        assert child.poll() is None, log_path.read_text()[-4000:]
        return socket_path.exists()

    until(has_started, timeout_s=_START_TIMEOUT_S)
