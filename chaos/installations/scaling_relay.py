"""A relay in front of the scaling socket of a host: it records each order and injects faults.

The socket of `millrace up` is moved aside, and the relay listens in its place, so no process of the
installation knows of it. Orders are forwarded one at a time: their record is in the order in which
the host carried them out.
"""

import asyncio
import contextlib
import random
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

import msgspec

from autoscaler.actuators.actuator import PoolOrder
from autoscaler.actuators.socket_messages import (
    LINE_BYTES_MAX,
    ApplyRequest,
    ErrorAnswer,
    ObserveRequest,
    PoolAnswer,
    SocketRequest,
    socket_address,
)
from chaos.errors import DrillError

RelayFault: TypeAlias = Literal["", "closed", "hang", "garbage", "lost-answer"]
"""`closed`: connections are closed at once. `hang`: a request is read and neither forwarded nor
answered. `garbage`: it is answered with bytes that are no answer. `lost-answer`: it is carried out,
and the connection is closed without the answer."""

ACCEPTED: Final = "accepted"
INNER_NAME: Final = "supervisor.sock"
_CALL_S_MAX: Final = 5.0
_START_S_MAX: Final = 10.0
_POLL_S: Final = 0.02
_GARBAGE_BYTES: Final = 200
_REQUEST: Final[msgspec.json.Decoder[SocketRequest]] = msgspec.json.Decoder(SocketRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedOrder:
    """An order that an autoscaler sent."""

    order: PoolOrder
    at_s: float  # epoch seconds of its end at the relay
    outcome: str  # `ACCEPTED`, the code of the host's refusal, or the fault


class ScalingRelay:
    """Relays the socket at `path` during its block."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        """Relay nothing yet. `chance` makes the garbage."""
        self.fault: RelayFault = ""
        self.orders: list[RelayedOrder] = []
        self._path, self._inner = path, path.with_name(INNER_NAME)
        self._chance = chance
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._forwarding = asyncio.Lock()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="scaling-relay", daemon=True)

    def __enter__(self) -> Self:
        """Move the socket aside and listen. Raises OSError, DrillError."""
        self._path.rename(self._inner)
        self._thread.start()
        if not self._started.wait(_START_S_MAX):
            raise DrillError("the scaling relay does not listen")
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.fault = ""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S_MAX)
        with contextlib.suppress(FileNotFoundError):
            self._inner.rename(self._path)

    def accepted(self) -> list[PoolOrder]:
        """Return the orders that the host carried out, in that order."""
        return [one.order for one in list(self.orders) if one.outcome == ACCEPTED]

    def held(self) -> PoolOrder | None:
        """Return the newest order if the fault `hang` keeps it from the host."""
        newest = self.orders[-1] if self.orders else None
        return newest.order if newest is not None and newest.outcome == "hang" else None

    def observe(self, pool: str) -> PoolAnswer:
        """Ask the host about a pool, past all faults. Raises DrillError."""
        line = msgspec.json.encode(ObserveRequest(pool)) + b"\n"
        try:
            with socket.socket(socket.AF_UNIX) as client, socket_address(self._inner) as address:
                client.settimeout(_CALL_S_MAX)
                client.connect(address)
                client.sendall(line)
                with client.makefile("rb") as answers:
                    return msgspec.json.decode(answers.readline(), type=PoolAnswer)
        except (OSError, msgspec.DecodeError) as error:
            raise DrillError(f"the host does not tell its replicas: {error}") from None

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._accept())

    async def _accept(self) -> None:
        with socket_address(self._path) as address:
            server = await asyncio.start_unix_server(
                self._answer, address, limit=LINE_BYTES_MAX, backlog=128
            )
        self._path.chmod(0o600)
        self._started.set()
        await self._stop.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (fault := self.fault) == "closed":
                return
            line = await reader.readuntil(b"\n")
            if fault == "lost-answer":
                await self._forward(line)
            elif fault:
                self._record(line, fault)
                if fault == "garbage":
                    writer.write(self._chance.randbytes(_GARBAGE_BYTES) + b"\n")
                    await writer.drain()
                elif fault == "hang":
                    await self._healed()
            else:
                writer.write(await self._forward(line))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError):
            return  # the autoscaler or the host has ended
        finally:
            writer.transport.abort()

    async def _healed(self) -> None:
        """Return when `fault`, which another thread sets, has changed."""
        before = self.fault
        while self.fault == before:  # noqa: ASYNC110  an event of asyncio belongs to its loop
            await asyncio.sleep(_POLL_S)

    async def _forward(self, line: bytes) -> bytes:
        """Have the host answer a request. Raises OSError, EOFError."""
        async with self._forwarding, asyncio.timeout(_CALL_S_MAX):
            with socket_address(self._inner) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=LINE_BYTES_MAX)
            try:
                writer.write(line)
                answer = await reader.readuntil(b"\n")
            finally:
                writer.transport.abort()
            self._record(line, _outcome(answer))
            return answer

    def _record(self, line: bytes, outcome: str) -> None:
        request = _REQUEST.decode(line)
        if isinstance(request, ApplyRequest):
            done = RelayedOrder(order=request.order, at_s=time.time(), outcome=outcome)
            self.orders.append(done)


def _outcome(answer: bytes) -> str:
    fields = msgspec.json.decode(answer, type=dict[str, object])
    return msgspec.convert(fields, ErrorAnswer).error if "error" in fields else ACCEPTED
