"""Goal: the tables of a file become actuators with metrics, or one plain error and nothing open."""

import socket
from pathlib import Path
from typing import ClassVar

import pytest
from prometheus_client import REGISTRY

from autoscaler.actuators.actuator import KindCount, Observed, PoolOrder
from autoscaler.actuators.actuator_tables import (
    ActuatorTable,
    CommandTable,
    EmbeddedTable,
    KedaTable,
    KubernetesTable,
    WebhookTable,
)
from autoscaler.actuators.factory import ActuatorDependencies, build_actuators
from autoscaler.actuators.keda.keda_settings import KedaSettings
from autoscaler.actuators.keda.scaling_values import ScalingValues
from autoscaler.actuators.kubernetes.kubernetes_settings import KubernetesSettings
from core.errors import SettingsError
from tests.support.clock import ManualClock

CLOCK = ManualClock(1_700_000_000.0)
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": "443"}


class OpenedActuator:
    kind: ClassVar[str] = "embedded"
    chooses_removals: ClassVar[bool] = True

    def __init__(self) -> None:
        self.closed = 0

    async def apply(self, order: PoolOrder) -> None:
        raise AssertionError

    async def observe(self, pool: str) -> Observed:
        return Observed(kinds=(KindCount(replicas=2),), epoch=1)

    async def close(self) -> None:
        self.closed += 1


def dependencies(
    env: dict[str, str] | None = None,
    embedded: OpenedActuator | None = None,
    http_port: int = 0,
) -> ActuatorDependencies:
    return ActuatorDependencies(
        KubernetesSettings.from_env(env or {}),
        KedaSettings(grpc_port=0, http_port=http_port),
        ScalingValues(CLOCK.wall_s),
        CLOCK,
        env or {},
        None if embedded is None else lambda: embedded,
    )


async def test_each_table_becomes_an_actuator_of_its_kind() -> None:
    tables: dict[str, ActuatorTable] = {
        "up": EmbeddedTable(),
        "cluster": KubernetesTable(namespace="models"),
        "hpa": KedaTable(),
        "script": CommandTable(("/bin/true",)),
        "hook": WebhookTable("https://scaler.example/orders", "secret"),
    }
    embedded = OpenedActuator()
    found = await build_actuators(tables, dependencies(IN_CLUSTER, embedded))

    assert {name: (one.kind, one.chooses_removals) for name, one in found.items()} == {
        "up": ("embedded", True),
        "cluster": ("kubernetes", True),
        "hpa": ("keda", False),
        "script": ("command", True),
        "hook": ("webhook", True),
    }
    for one in found.values():
        await one.close()
    assert embedded.closed == 1


async def test_calls_are_counted_by_kind_and_code() -> None:
    def counted(code: str) -> float:
        labels = {"kind": "command", "action": "apply", "code": code}
        return REGISTRY.get_sample_value("millrace_actuator_calls_total", labels) or 0

    found = await build_actuators({"a": CommandTable(("/bin/false",))}, dependencies())
    before = counted("actuator_failed")
    order = PoolOrder(pool="chat", epoch=1, sequence=1, kinds=())
    with pytest.raises(Exception, match="did not carry out"):
        await found["a"].apply(order)

    assert counted("actuator_failed") == before + 1


@pytest.mark.parametrize(
    ("table", "env", "problem"),
    [
        (EmbeddedTable(), {}, "only `millrace up` has this kind"),
        (KubernetesTable(), {}, "MILLRACE_KUBERNETES_URL is needed outside of Kubernetes"),
        (KubernetesTable(), IN_CLUSTER, "namespace is needed outside of Kubernetes"),
        (
            KubernetesTable(namespace="models"),
            {"MILLRACE_KUBERNETES_URL": "http://cluster.example"},
            "MILLRACE_KUBERNETES_URL: http is only for this machine; use https.",
        ),
    ],
)
async def test_what_cannot_be_built_is_one_plain_error(
    table: ActuatorTable, env: dict[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        await build_actuators({"a": table}, dependencies(env))


async def test_the_namespace_is_that_of_the_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("models\n")
    env = {**IN_CLUSTER, "MILLRACE_KUBERNETES_NAMESPACE_FILE": str(tmp_path / "namespace")}
    found = await build_actuators({"a": KubernetesTable()}, dependencies(env))

    assert found["a"].kind == "kubernetes"
    await found["a"].close()


async def test_what_was_opened_is_closed_when_a_later_table_fails() -> None:
    embedded = OpenedActuator()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        tables: dict[str, ActuatorTable] = {"up": EmbeddedTable(), "hpa": KedaTable()}
        with pytest.raises(SettingsError, match="cannot listen"):
            await build_actuators(
                tables, dependencies(embedded=embedded, http_port=taken.getsockname()[1])
            )

    assert embedded.closed == 1
