"""Platforms for the conformance suite of actuators: fakes of Kubernetes, KEDA and the operator."""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from autoscaler.actuators.actuator import Actuator, PoolOrder
from autoscaler.actuators.actuator_tables import KubernetesTable
from autoscaler.actuators.keda.external_scaler import ExternalScalerServer, ScalerReading
from autoscaler.actuators.keda.keda_actuator import KedaActuator
from autoscaler.actuators.keda.scaling_values import KindSelector, ScalingValues
from autoscaler.actuators.keda.value_server import ValueServer
from autoscaler.actuators.kubernetes.kubernetes_actuator import KubernetesActuator
from autoscaler.actuators.kubernetes.kubernetes_client import KubernetesClient
from autoscaler.actuators.outside.command_actuator import CommandActuator
from autoscaler.actuators.outside.webhook_actuator import WebhookActuator
from core.webhook_signatures import secret_text, signed_headers
from tests.support import order_receiver
from tests.support.actuator_conformance import Fault, Kind
from tests.support.clock import ManualClock
from tests.support.fake_kubernetes import NAMESPACE, TOKEN, FakeKubernetes
from topics.records.scaling import PoolScaling, ReplicaKind

POOL = "chat"
TWO_KINDS: tuple[Kind, ...] = (("l4", "", False), ("l4", "", True))
SECRET = bytes(range(32))
NOW_S = 1_700_000_000.0


class KubernetesPlatform:
    """A fake API server with Deployments of one pool on l4, on demand and spot."""

    pool = POOL
    unknown_pool = "nowhere"
    kinds = TWO_KINDS

    def __init__(self, folder: Path, stack: AsyncExitStack, url: str, api: FakeKubernetes) -> None:
        self.api = api
        self.clock = ManualClock()
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN)
        self._stack = stack
        self._url = url
        for name, spot in (("m-chat-l4", "false"), ("m-chat-l4-spot", "true")):
            api.add_deployment(
                name,
                {
                    "millrace.dev/pool": POOL,
                    "millrace.dev/gpu-type": "l4",
                    "millrace.dev/spot": spot,
                },
            )

    async def open_actuator(self, name: str = "main", timeout_s: float = 8.0) -> KubernetesActuator:
        actuator = KubernetesActuator(
            name,
            KubernetesTable(release="m", timeout_s=timeout_s),
            KubernetesClient(self._url, self.token_file, Path("/dev/null")),
            namespace=NAMESPACE,
            monotonic_s=self.clock.monotonic_s,
        )
        self._stack.push_async_callback(actuator.close)
        return actuator

    def replicas(self) -> dict[Kind, int]:
        found = {}
        for one in self.api.deployments.values():
            labels = one["metadata"]["labels"]
            spot = labels["millrace.dev/spot"] == "true"
            found[labels["millrace.dev/gpu-type"], "", spot] = one["spec"]["replicas"]
        return {kind: count for kind, count in found.items() if count}

    def writes(self) -> int:
        return self.api.scale_writes

    def break_with(self, fault: Fault | None) -> None:
        self.api.fault = None if fault is None else fault.value


@asynccontextmanager
async def kubernetes_platform(folder: Path) -> AsyncIterator[KubernetesPlatform]:
    """Serve a fake API server."""
    api = FakeKubernetes()
    async with api.serve() as url, AsyncExitStack() as stack:
        yield KubernetesPlatform(folder, stack, url, api)


class KedaPlatform:
    """The values that KEDA reads; the topic `scaling` outlives the actuators' processes.

    An actuator is what one process has: it wrote a record for each order that succeeded, and each
    process reads the records of all.
    """

    pool = POOL
    kinds = TWO_KINDS

    def __init__(self, stack: AsyncExitStack) -> None:
        self.clock = ManualClock(NOW_S)
        self.records: list[PoolScaling] = []
        self._stack = stack
        self._processes: list[ScalingValues] = []

    async def open_actuator(self, name: str = "main", timeout_s: float = 8.0) -> Actuator:
        values = ScalingValues(self.clock.wall_s)
        for record in self.records:
            values.restore(record)
        self._processes.append(values)
        reading = ScalerReading(name, values, past_tolerance=False)
        actuator = _RecordedKedaActuator(self, name, values, reading)
        self._stack.push_async_callback(actuator.close)
        await actuator.start()
        return actuator

    def record(self, order: PoolOrder, actuator: str) -> None:
        record = PoolScaling(
            pool=order.pool,
            epoch=order.epoch,
            sequence=order.sequence,
            at_s=self.clock.wall_s(),
            mode="active",
            actuator=actuator,
            target=order.replicas,
            kinds=[ReplicaKind(k.gpu_type, k.zone, k.spot, k.replicas) for k in order.kinds],
            removals=[],
            awake=[],
            standby=0,
            start_s=1.0,
            wake_s=1.0,
        )
        self.records.append(record)
        for values in self._processes:
            values.restore(record)

    def replicas(self) -> dict[Kind, int]:
        """Return what each process serves: all the same."""
        served = []
        for values in self._processes:
            value = values.last(self.pool)
            found = {
                kind: KindSelector(*kind).count(value.kinds if value else ()) for kind in self.kinds
            }
            served.append({kind: count for kind, count in found.items() if count})
        assert all(one == served[0] for one in served)
        return served[0]

    def writes(self) -> int:
        return sum(one.kinds != two.kinds for one, two in itertools.pairwise(self.records))


class _RecordedKedaActuator(KedaActuator):
    def __init__(
        self, platform: KedaPlatform, name: str, values: ScalingValues, reading: ScalerReading
    ) -> None:
        super().__init__(
            name,
            values,
            ExternalScalerServer(reading, "127.0.0.1", 0),
            ValueServer(reading, "127.0.0.1", 0, None),
        )
        self._platform = platform
        self._table = name

    async def apply(self, order: PoolOrder) -> None:
        await super().apply(order)
        self._platform.record(order, self._table)


@asynccontextmanager
async def keda_platform() -> AsyncIterator[KedaPlatform]:
    """Serve values on free ports."""
    async with AsyncExitStack() as stack:
        yield KedaPlatform(stack)


class CommandPlatform:
    """A command that keeps its state in a file."""

    pool = POOL
    unknown_pool = "nowhere"
    kinds: tuple[Kind, ...] = (("l4", "a", False), ("l4", "b", False), ("h100", "", True))

    def __init__(self, folder: Path) -> None:
        self.file = folder / "state.json"
        self._write(order_receiver.new_state([POOL]))

    async def open_actuator(self, name: str = "main", timeout_s: float = 8.0) -> Actuator:
        command = [sys.executable, "-I", "-S", order_receiver.__file__, str(self.file)]
        return CommandActuator(name, command, timeout_s, os.environ)

    def replicas(self) -> dict[Kind, int]:
        return _replicas(self._state())

    def writes(self) -> int:
        return int(self._state()["writes"])

    def break_with(self, fault: Fault | None) -> None:
        self._write({**self._state(), "fault": fault})

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def _write(self, state: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(state))


class WebhookPlatform:
    """A server that checks signatures and carries out orders."""

    pool = POOL
    unknown_pool = "nowhere"
    kinds = CommandPlatform.kinds

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.secret_file = folder / "secret"
        self.secret_file.write_text(secret_text(SECRET) + "\n")
        self.state = order_receiver.new_state([POOL])
        self.answer: web.Response | None = None  # in place of what the state says
        self.url = ""
        self._stack = stack
        self._ids = (f"msg_{number}" for number in itertools.count())

    async def open_actuator(self, name: str = "main", timeout_s: float = 8.0) -> Actuator:
        actuator = WebhookActuator(
            name,
            self.url,
            self.secret_file,
            timeout_s=timeout_s,
            now_s=lambda: NOW_S,
            new_id=lambda: next(self._ids),
        )
        self._stack.push_async_callback(actuator.close)
        return actuator

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        message_id = request.headers["webhook-id"]
        expected = signed_headers([SECRET], message_id, int(NOW_S), body)
        if any(request.headers.get(name) != value for name, value in expected.items()):
            return web.json_response({"code": "actuator_denied"}, status=401)
        match self.state["fault"]:
            case "hang":
                await asyncio.Event().wait()  # until the caller has gone
            case "denied":
                return web.Response(status=403)
            case "conflict":
                return web.Response(status=409, text="not JSON")
            case "absurd":
                kinds = [{"replicas": -5}]
                return web.json_response({"pool": POOL, "epoch": 1, "kinds": kinds})
        if self.answer is not None:
            return self.answer
        code, answer = order_receiver.carry_out(self.state, json.loads(body))
        statuses = {None: 200, "unknown_pool": 404, "actuator_denied": 403}
        return web.json_response(answer, status=statuses.get(code, 409))

    def replicas(self) -> dict[Kind, int]:
        return _replicas(self.state)

    def writes(self) -> int:
        return int(self.state["writes"])

    def break_with(self, fault: Fault | None) -> None:
        self.state["fault"] = None if fault is None else fault.value


@asynccontextmanager
async def webhook_platform(folder: Path) -> AsyncIterator[WebhookPlatform]:
    """Serve a receiver of orders."""
    async with AsyncExitStack() as stack:
        platform = WebhookPlatform(folder, stack)
        app = web.Application()
        app.router.add_post("/orders", platform.handle)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        platform.url = f"http://127.0.0.1:{runner.addresses[0][1]}/orders"
        yield platform


def _replicas(state: dict[str, Any]) -> dict[Kind, int]:
    return dict(_counts(state["pools"][POOL]["kinds"]))


def _counts(kinds: list[dict[str, Any]]) -> Iterator[tuple[Kind, int]]:
    for kind in kinds:
        if kind["replicas"]:
            yield (kind["gpu_type"], kind["zone"], kind["spot"]), kind["replicas"]
