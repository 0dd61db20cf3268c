"""Goal: KEDA's own client, of its Go module, reads from our scaler what was decided.

The client is built from the module of a KEDA release, pinned by `client/go.sum`. No cluster is
here.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from autoscaler.actuators.actuator import KindCount, PoolOrder
from autoscaler.actuators.keda.external_scaler import ExternalScalerServer, ScalerReading
from autoscaler.actuators.keda.keda_actuator import KedaActuator
from autoscaler.actuators.keda.scaling_values import FRESH_S, ScalingValues
from autoscaler.actuators.keda.value_server import ValueServer
from tests.support.clock import ManualClock

SOURCE = Path(__file__).parent / "client"
BUILD_S = 240
CALL_S = 60


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> str:
    go = shutil.which("go")
    assert go is not None, "Go builds KEDA's client: install it (CONTRIBUTING.md)"
    program = tmp_path_factory.mktemp("keda") / "client"
    env = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"}
    built = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=SOURCE,
        env=env,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return str(program)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000.0)


@pytest.fixture
async def actuator(clock: ManualClock) -> AsyncIterator[KedaActuator]:
    values = ScalingValues(clock.wall_s)
    reading = ScalerReading("main", values, past_tolerance=False)
    found = KedaActuator(
        "main",
        values,
        ExternalScalerServer(reading, "127.0.0.1", 0),
        ValueServer(reading, "127.0.0.1", 0, None),
    )
    await found.start()
    yield found
    await found.close()


def order(replicas: int, sequence: int = 1) -> PoolOrder:
    kinds = (KindCount(gpu_type="l4", replicas=replicas),)
    return PoolOrder(pool="chat", epoch=1, sequence=sequence, kinds=kinds)


async def start(client: str, actuator: KedaActuator, *arguments: str) -> Any:
    address = f"127.0.0.1:{actuator.scaler.port}"
    return await asyncio.create_subprocess_exec(
        client, address, "chat", *arguments, stdout=asyncio.subprocess.PIPE
    )


async def call(client: str, actuator: KedaActuator) -> Any:
    process = await start(client, actuator)
    async with asyncio.timeout(CALL_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.timeout(BUILD_S + 60)
async def test_the_client_reads_the_target_zero_and_no_stale_value(
    client: str, actuator: KedaActuator, clock: ManualClock
) -> None:
    assert await call(client, actuator) == unavailable()
    for sequence, replicas in enumerate((7, 0, 10_000)):
        await actuator.apply(order(replicas, sequence))
        assert await call(client, actuator) == {
            "code": "OK",
            "active": replicas > 0,
            "metric": "replicas",
            "target_size": 1,
            "metric_value": replicas,
        }

    clock.advance(FRESH_S)
    assert await call(client, actuator) == unavailable()


@pytest.mark.timeout(BUILD_S + 60)
async def test_the_client_is_told_of_a_wake_by_the_stream(
    client: str, actuator: KedaActuator
) -> None:
    await actuator.apply(order(0))
    process = await start(client, actuator, "stream")
    try:
        async with asyncio.timeout(CALL_S):
            assert json.loads(await process.stdout.readline())["active"] is False
            await actuator.apply(order(1, 2))
            assert json.loads(await process.stdout.readline())["active"] is True
            await actuator.close()
            assert json.loads(await process.stdout.readline())["code"] != "OK"
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def unavailable() -> dict[str, Any]:
    return {
        "code": "Unavailable",
        "active": False,
        "metric": "",
        "target_size": 0,
        "metric_value": 0,
    }
