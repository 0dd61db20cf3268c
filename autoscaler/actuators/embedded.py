"""The actuator `embedded`: replicas as child processes of `millrace up` on the same machine."""

import asyncio
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from autoscaler.actuators.actuator import (
    EPOCH_MAX,
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    ActuatorTimeoutError,
    ForeignScalerError,
    Observed,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
    UnknownPoolError,
    counts_by_kind,
)
from autoscaler.actuators.socket_messages import (
    LINE_BYTES_MAX,
    ApplyRequest,
    ErrorAnswer,
    ObserveRequest,
    PoolAnswer,
    SocketRequest,
    socket_address,
)

TIMEOUT_S: Final = 5.0
"""From the connection to the answer."""

_REPLICAS_MAX: Final = 10_000
_MESSAGE_CHARS_MAX: Final = 500
_ERRORS: Final = {
    error.code: error
    for error in (
        StaleEpochError,
        ActuatorDeniedError,
        ActuatorConflictError,
        ActuatorTimeoutError,
        ForeignScalerError,
        UnknownPoolError,
    )
}


class EmbeddedActuator:
    """Asks the process of `millrace up` by its socket. Each call opens a connection."""

    kind: ClassVar[str] = "embedded"
    chooses_removals: ClassVar[bool] = True

    def __init__(self, socket_path: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """`socket_path` is `DATA/scaling.sock` of the stack; it need not exist yet."""
        self._path = Path(socket_path)
        self._timeout_s = timeout_s

    async def apply(self, order: PoolOrder) -> None:
        """See `Actuator`. An answer that differs from the order is an UnexpectedAnswerError."""
        answer = await self._request(ApplyRequest(order))
        if answer.epoch != order.epoch or counts_by_kind(answer.kinds) != counts_by_kind(
            order.kinds
        ):
            raise UnexpectedAnswerError("The stack answered an order with other replicas.")

    async def observe(self, pool: str) -> Observed:
        """See `Actuator`."""
        answer = await self._request(ObserveRequest(pool))
        return Observed(kinds=answer.kinds, epoch=answer.epoch)

    async def close(self) -> None:
        """Do nothing: no connection outlives its call."""

    async def _request(self, request: SocketRequest) -> PoolAnswer:
        line = msgspec.json.encode(request) + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise ActuatorDeniedError("The order is longer than the stack accepts.")
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._exchange(line)
        except TimeoutError:
            raise ActuatorTimeoutError(
                f"The stack did not answer within {self._timeout_s:g} s."
            ) from None
        except OSError as error:
            raise ActuatorError(f"The socket of the stack fails: {error.strerror}.") from None
        return _read_answer(answer)

    async def _exchange(self, line: bytes) -> bytes:
        """Send a line and return what was answered, which may be too long or incomplete."""
        with socket_address(self._path) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=LINE_BYTES_MAX - 1)
        try:
            writer.write(line)
            await writer.drain()
            return await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError:
            raise UnexpectedAnswerError("The answer of the stack is too long.") from None
        finally:
            writer.transport.abort()


def _read_answer(line: bytes) -> PoolAnswer:
    """Return a valid answer. Raises the error that the stack named, else UnexpectedAnswerError."""
    if not line.endswith(b"\n"):
        raise UnexpectedAnswerError("The stack closed the connection within its answer.")
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
        if "error" in fields:
            refusal = msgspec.convert(fields, ErrorAnswer)
            error = _ERRORS.get(refusal.error, ActuatorError)
            raise error(refusal.message[:_MESSAGE_CHARS_MAX])
        answer = msgspec.convert(fields, PoolAnswer)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise UnexpectedAnswerError("The answer of the stack is not valid.") from None
    counts = [kind.replicas for kind in answer.kinds]
    is_epoch = 0 <= answer.epoch <= EPOCH_MAX
    if not is_epoch or any(count < 0 for count in counts) or sum(counts) > _REPLICAS_MAX:
        raise UnexpectedAnswerError("The answer of the stack has impossible numbers.")
    return answer
