"""What a command or webhook of the operator reads and answers: JSON, bounded and checked. Pure."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from autoscaler.actuators.actuator import (
    EPOCH_MAX,
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    ForeignScalerError,
    KindCount,
    Observed,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
    UnknownPoolError,
)

ANSWER_BYTES_MAX: Final = 256 * 1024
REPLICAS_MAX: Final = 10_000
"""Replicas of a pool that an answer may have."""

_KINDS_MAX: Final = 4_096  # GPU types × zones × spot or not
_ERRORS: Final[dict[str, type[ActuatorError]]] = {
    error.code: error
    for error in (
        StaleEpochError,
        ActuatorDeniedError,
        ActuatorConflictError,
        ForeignScalerError,
        UnknownPoolError,
    )
}


class _KindAnswer(msgspec.Struct, frozen=True):
    gpu_type: Annotated[str, Meta(max_length=63)] = ""
    zone: Annotated[str, Meta(max_length=63)] = ""
    spot: bool = False
    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] = 0


class _Answer(msgspec.Struct, frozen=True):
    epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
    pool: str
    actuator: str = ""
    kinds: Annotated[tuple[_KindAnswer, ...], Meta(max_length=_KINDS_MAX)] = ()


class _Failure(msgspec.Struct, frozen=True):
    code: Annotated[str, Meta(max_length=100)]


def order_message(actuator: str, order: PoolOrder) -> bytes:
    """Return the JSON of an order. `actuator` is its name in the policy file."""
    return _message("apply", actuator, msgspec.to_builtins(order))


def observe_message(actuator: str, pool: str) -> bytes:
    """Return the JSON that asks for the replicas of a pool."""
    return _message("observe", actuator, {"pool": pool})


def check_applied(answer: bytes, order: PoolOrder) -> None:
    """Check the answer to an order that succeeded: it repeats pool and epoch.

    Raises StaleEpochError if the answer has a higher epoch, UnexpectedAnswerError for any other
    difference: who answers does not keep epochs, so it would carry out old orders too.
    """
    found = _decoded(answer, order.pool)
    if found.epoch > order.epoch:
        raise StaleEpochError(epoch=found.epoch)
    if found.epoch < order.epoch:
        raise UnexpectedAnswerError(epoch=found.epoch)


def read_observed(answer: bytes, pool: str, actuator: str) -> Observed:
    """Return what an answer says of a pool. Raises UnexpectedAnswerError, ForeignScalerError."""
    found = _decoded(answer, pool)
    if found.actuator not in {"", actuator}:
        raise ForeignScalerError(pool=pool)
    kinds = tuple(
        KindCount(gpu_type=one.gpu_type, zone=one.zone, spot=one.spot, replicas=one.replicas)
        for one in found.kinds
    )
    if len({(one.gpu_type, one.zone, one.spot) for one in kinds}) < len(kinds):
        raise UnexpectedAnswerError("The answer has a kind of replica twice.")
    if sum(one.replicas for one in kinds) > REPLICAS_MAX:
        raise UnexpectedAnswerError("The answer has too many replicas.")
    return Observed(kinds=kinds, epoch=found.epoch)


def failure_of(answer: bytes, otherwise: type[ActuatorError]) -> ActuatorError:
    """Return the error that a refusal names by `code`, or one of the class `otherwise`."""
    try:
        code = msgspec.json.decode(answer, type=_Failure).code
    except (msgspec.DecodeError, RecursionError):
        return otherwise()
    return _ERRORS.get(code, otherwise)()


def _message(action: str, actuator: str, fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"action": action, "actuator": actuator, **fields})


def _decoded(answer: bytes, pool: str) -> _Answer:
    if len(answer) > ANSWER_BYTES_MAX:
        raise UnexpectedAnswerError("The answer is too large.")
    try:
        found = msgspec.json.decode(answer, type=_Answer)
    except (msgspec.DecodeError, RecursionError):
        raise UnexpectedAnswerError("The answer is not the JSON that is expected.") from None
    if found.pool != pool:
        raise UnexpectedAnswerError("The answer is of another pool.")
    return found
