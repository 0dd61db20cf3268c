"""Goal: the actuator `embedded` orders what it is told, and names each way in which that fails."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    ActuatorTimeoutError,
    ForeignScalerError,
    KindCount,
    Observed,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.actuators.embedded import EmbeddedActuator
from tests.support.scaling_sockets import RecordedPools, carried_out, scaling_socket
from tests.support.until import until_true

ORDER = PoolOrder(pool="pool", epoch=3, sequence=1, kinds=(KindCount(replicas=2),))
LONGEST_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scaling.sock"


@pytest.fixture
def pools(path: Path) -> Iterator[RecordedPools]:
    recorded = RecordedPools()
    with scaling_socket(path, recorded) as server, carried_out(server.answer_waiting):
        yield recorded


@asynccontextmanager
async def answering(path: Path, answer: bytes | None) -> AsyncIterator[EmbeddedActuator]:
    """An actuator whose stack answers each request with `answer`; None: never."""
    stop = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if answer is None:
            await stop.wait()
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield EmbeddedActuator(str(path), timeout_s=0.2 if answer is None else LONGEST_S)
        stop.set()


async def test_an_order_is_carried_out_and_observed(path: Path, pools: RecordedPools) -> None:
    actuator = EmbeddedActuator(str(path), timeout_s=LONGEST_S)

    assert await actuator.observe("pool") == Observed(kinds=(), epoch=0)
    for _ in range(2):
        await actuator.apply(ORDER)
    await actuator.close()

    assert pools.orders == [ORDER, ORDER]
    assert await actuator.observe("pool") == Observed(kinds=ORDER.kinds, epoch=3)


async def test_a_lower_epoch_is_refused(path: Path, pools: RecordedPools) -> None:
    actuator = EmbeddedActuator(str(path), timeout_s=LONGEST_S)
    await actuator.apply(ORDER)

    with pytest.raises(StaleEpochError):
        await actuator.apply(PoolOrder(pool="pool", epoch=2, sequence=9, kinds=()))

    assert pools.orders == [ORDER]


async def test_an_unknown_pool_is_refused(path: Path, pools: RecordedPools) -> None:
    with pytest.raises(UnknownPoolError):
        await EmbeddedActuator(str(path), timeout_s=LONGEST_S).observe("other")


async def test_a_stack_that_hangs_is_a_timeout(path: Path) -> None:
    async with answering(path, None) as actuator:
        with pytest.raises(ActuatorTimeoutError):
            await actuator.apply(ORDER)


async def test_a_stack_whose_loop_is_blocked_is_a_timeout(path: Path) -> None:
    with scaling_socket(path, RecordedPools()), pytest.raises(ActuatorTimeoutError):
        await EmbeddedActuator(str(path), timeout_s=0.2).apply(ORDER)


async def test_without_a_stack_there_is_an_error(path: Path) -> None:
    actuator = EmbeddedActuator(str(path))
    with pytest.raises(ActuatorError, match="No such file"):
        await actuator.observe("pool")


async def test_a_socket_that_a_killed_stack_left_is_an_error(path: Path) -> None:
    actuator = EmbeddedActuator(str(path))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(ActuatorError, match="refused"):
        await actuator.observe("pool")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        b"{}",
        b"{}\n",
        b"null\n",
        b"garbage\n",
        b"\xff\xfe\n",
        b"[" * 60_000 + b"\n",
        b"x" * 200_000,
        b'{"error":5}\n',
        b'{"kinds":[],"epoch":"3"}\n',
        b'{"kinds":[],"epoch":-1}\n',
        b'{"kinds":[{"replicas":-2}],"epoch":3}\n',
        b'{"kinds":[{"replicas":2.5}],"epoch":3}\n',
        b'{"kinds":[{"replicas":1000000}],"epoch":3}\n',
        b'{"kinds":[{"replicas":2}],"epoch":3}',  # no end of line
    ],
    ids=lambda answer: repr(answer[:40]),
)
async def test_an_impossible_answer_is_unexpected(path: Path, answer: bytes) -> None:
    async with answering(path, answer) as actuator:
        with pytest.raises(UnexpectedAnswerError):
            await actuator.apply(ORDER)
        with pytest.raises(UnexpectedAnswerError):
            await actuator.observe("pool")


@pytest.mark.parametrize(
    "kinds",
    [[], [{"replicas": 1}], [{"replicas": 2, "spot": True}], [{"replicas": 2}, {"replicas": 1}]],
    ids=str,
)
async def test_a_stack_that_confirms_another_order_is_not_believed(
    path: Path, kinds: list[dict[str, object]]
) -> None:
    line = json.dumps({"kinds": kinds, "epoch": 3}).encode() + b"\n"
    async with answering(path, line) as actuator:
        with pytest.raises(UnexpectedAnswerError):
            await actuator.apply(ORDER)


async def test_kinds_without_replicas_make_no_difference(path: Path) -> None:
    line = b'{"kinds":[{"replicas":2},{"gpu_type":"l4","replicas":0}],"epoch":3}\n'
    async with answering(path, line) as actuator:
        await actuator.apply(ORDER)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("stale_epoch", StaleEpochError),
        ("actuator_denied", ActuatorDeniedError),
        ("actuator_conflict", ActuatorConflictError),
        ("actuator_timeout", ActuatorTimeoutError),
        ("foreign_scaler", ForeignScalerError),
        ("unknown_pool", UnknownPoolError),
        ("busy", ActuatorError),
        ("a code of a later release", ActuatorError),
    ],
)
async def test_each_code_has_its_error(path: Path, code: str, error: type[ActuatorError]) -> None:
    line = json.dumps({"error": code, "message": "why " * 1000}).encode() + b"\n"
    async with answering(path, line) as actuator:
        with pytest.raises(error) as raised:
            await actuator.apply(ORDER)
    assert type(raised.value) is error
    assert str(raised.value).startswith("why why")
    assert len(str(raised.value)) <= 500


async def test_an_order_that_is_too_long_is_not_sent(path: Path, pools: RecordedPools) -> None:
    removals = tuple(f"pool-{number:060}" for number in range(2000))
    with pytest.raises(ActuatorDeniedError):
        await EmbeddedActuator(str(path)).apply(
            PoolOrder(pool="pool", epoch=3, sequence=1, kinds=(), removals=removals)
        )
    assert pools.orders == []


async def test_calls_at_once_do_not_disturb_each_other(path: Path, pools: RecordedPools) -> None:
    actuator = EmbeddedActuator(str(path), timeout_s=LONGEST_S)

    await asyncio.gather(*(actuator.apply(ORDER) for _ in range(8)))

    assert len(pools.orders) == 8


async def test_a_cancelled_call_closes_its_connection(path: Path) -> None:
    closed = threading.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        received.set()
        await reader.read()
        closed.set()
        writer.close()

    received = asyncio.Event()
    async with await asyncio.start_unix_server(serve, path):
        call = asyncio.create_task(EmbeddedActuator(str(path), timeout_s=LONGEST_S).apply(ORDER))
        await received.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until_true(closed.is_set)
