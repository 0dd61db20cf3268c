"""The socket by which the autoscaler orders replicas from `millrace up`.

A thread of its own serves connections and checks requests. It carries out none: children may be
started by the main thread alone. Requests wait in a queue for the loop of the supervisor, and one
whose client has given up is not carried out.
"""

import asyncio
import contextlib
import logging
import queue
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from autoscaler.actuators.actuator import ActuatorError, PoolOrder
from autoscaler.actuators.socket_messages import (
    LINE_BYTES_MAX,
    ApplyRequest,
    ErrorAnswer,
    ObserveRequest,
    PoolAnswer,
    SocketRequest,
    socket_address,
)
from autoscaler.policies.pool_policy import NAME_PATTERN

FILE_NAME: Final = "scaling.sock"
CONNECTIONS_MAX: Final = 128
WAITING_MAX: Final = 16
"""Requests that wait for the supervisor's loop."""

READ_S_MAX: Final = 2.0
ANSWER_S_MAX: Final = 4.0
"""For the loop to carry out a request; less than the client waits."""

WRITE_S_MAX: Final = 2.0
_BACKLOG: Final = 128
_NUMBER_MAX: Final = 2**63 - 1
_START_S_MAX: Final = 10.0
_LOG = logging.getLogger(__name__)
_REQUEST: msgspec.json.Decoder[SocketRequest] = msgspec.json.Decoder(SocketRequest)


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: SocketRequest
    answer: Future[PoolAnswer]


class _RefusedRequestError(Exception):
    """A request that is not carried out."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.answer = ErrorAnswer(error=code, message=message)


class ScalingSocket:
    """Serves `path` during its block; `answer_waiting` carries requests out."""

    def __init__(
        self,
        path: Path,
        *,
        apply: Callable[[PoolOrder], PoolAnswer],
        observe: Callable[[str], PoolAnswer],
        read_s_max: float = READ_S_MAX,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        """`apply` and `observe` run in `answer_waiting`. They raise ActuatorError."""
        self._path, self._apply, self._observe = path, apply, observe
        self._read_s_max, self._answer_s_max = read_s_max, answer_s_max
        self._waiting: queue.Queue[_Waiting] = queue.Queue(WAITING_MAX)
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Listen. Raises OSError."""
        listener = _listen(self._path)
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(listener, started), name="scaling-socket", daemon=True
        )
        self._thread.start()
        started.wait(_START_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections and remove the socket's file."""
        self._path.unlink(missing_ok=True)
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S_MAX)

    def answer_waiting(self) -> None:
        """Carry out the requests that wait. Does not block."""
        for _ in range(WAITING_MAX):
            try:
                waiting = self._waiting.get_nowait()
            except queue.Empty:
                return
            if not waiting.answer.set_running_or_notify_cancel():
                continue  # its client has given up, and sends a newer order
            try:
                waiting.answer.set_result(self._carry_out(waiting.request))
            except ActuatorError as refusal:
                waiting.answer.set_exception(refusal)
            except Exception:  # noqa: BLE001  an order must not end the stack
                _LOG.exception("a request of the autoscaler failed")
                waiting.answer.set_exception(ActuatorError("The request cannot be carried out."))

    def _carry_out(self, request: SocketRequest) -> PoolAnswer:
        if isinstance(request, ApplyRequest):
            return self._apply(request.order)
        return self._observe(request.pool)

    def _serve(self, listener: socket.socket, started: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._accept(listener, started))

    async def _accept(self, listener: socket.socket, started: threading.Event) -> None:
        server = await asyncio.start_unix_server(
            self._answer_connection, sock=listener, backlog=_BACKLOG, limit=LINE_BYTES_MAX - 1
        )
        started.set()
        try:
            await self._stop.wait()
        finally:
            server.close()

    async def _answer_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._connections += 1
        try:
            try:
                answer: PoolAnswer | ErrorAnswer = await self._answer(reader)
            except _RefusedRequestError as refused:
                answer = refused.answer
            except ActuatorError as refusal:
                answer = ErrorAnswer(error=refusal.code, message=str(refusal))
            writer.write(msgspec.json.encode(answer) + b"\n")
            async with asyncio.timeout(WRITE_S_MAX):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except OSError:  # a TimeoutError is one
            _LOG.info("scaling_client_lost")
        finally:
            self._connections -= 1
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> PoolAnswer:
        """Return the answer to the request of one connection.

        Raises _RefusedRequestError, and ActuatorError as the request's own answer.
        """
        if self._connections > CONNECTIONS_MAX:
            raise _RefusedRequestError("busy", f"At most {CONNECTIONS_MAX} connections at once.")
        waiting = _Waiting(await self._read_request(reader), Future())
        try:
            self._waiting.put_nowait(waiting)
        except queue.Full:
            raise _RefusedRequestError("busy", f"{WAITING_MAX} requests wait already.") from None
        try:
            async with asyncio.timeout(self._answer_s_max):
                return await asyncio.wrap_future(waiting.answer)  # a timeout cancels it
        except TimeoutError:
            raise _RefusedRequestError("actuator_timeout", "The stack is busy.") from None

    async def _read_request(self, reader: asyncio.StreamReader) -> SocketRequest:
        try:
            async with asyncio.timeout(self._read_s_max):
                line = await reader.readuntil(b"\n")
            request = _REQUEST.decode(line)
            if isinstance(request, ObserveRequest):
                return request
            if not _has_sane_numbers(request.order):
                message = "A number of the order is out of range."
            elif not _has_sane_names(request.order):
                message = "A GPU type or zone of the order is no name."
            else:
                return request
        except TimeoutError:
            message = f"No whole line came within {self._read_s_max:g} s."
        except asyncio.LimitOverrunError:
            message = f"The line is longer than {LINE_BYTES_MAX} bytes."
        except asyncio.IncompleteReadError:
            message = "The connection ended within the line."
        except (msgspec.MsgspecError, ValueError, RecursionError):
            message = "The line is no request in JSON."
        raise _RefusedRequestError("invalid_request", message)


def _has_sane_numbers(order: PoolOrder) -> bool:
    """Whether no number is negative or huge: an absurd epoch would refuse all later orders."""
    numbers = (order.epoch, order.sequence, order.standby, *(k.replicas for k in order.kinds))
    return all(0 <= number <= _NUMBER_MAX for number in numbers)


def _has_sane_names(order: PoolOrder) -> bool:
    """Whether types and zones are names of a policy file: they become variables of processes."""
    names = {name for kind in order.kinds for name in (kind.gpu_type, kind.zone)} - {""}
    return all(re.match(NAME_PATTERN, name) for name in names)


def _listen(path: Path) -> socket.socket:
    """Return a socket at `path` with mode 0600, in place of one that a killed stack left.

    It does not accept connections before `listen`, so none comes before the mode is set.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with socket_address(path) as address:
            listener.bind(address)
        path.chmod(0o600)
    except BaseException:
        listener.close()
        raise
    return listener
