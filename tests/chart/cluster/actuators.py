"""The actuator `kubernetes` as the autoscaler's pod has it: files, account, policies."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from autoscaler.actuators.actuator import Actuator
from autoscaler.actuators.actuator_tables import KubernetesTable
from autoscaler.actuators.factory import ActuatorDependencies, build_actuators
from autoscaler.actuators.keda.keda_settings import KedaSettings
from autoscaler.actuators.keda.scaling_values import ScalingValues
from autoscaler.actuators.kubernetes.kubernetes_settings import KubernetesSettings
from autoscaler.policies.policy_reader import read_policies
from core.clock import SystemClock
from tests.chart.cluster.kube_api import KubeApi
from tests.chart.cluster.releases import FULLNAME, Release
from tests.support.actuator_conformance import Kind

AUTOSCALER: Final = "millrace-autoscaler"
CLOCK: Final = SystemClock()
_KEPT: Final = ("millrace.dev/scaling-epoch", "millrace.dev/actuator")


class InstalledPlatform:
    """One pool of a release, with an actuator that has the rights of an account of the chart."""

    def __init__(self, chart: Release, stack: AsyncExitStack, pool: str = "chat-8b") -> None:
        self.pool = pool
        self.api: KubeApi = chart.api
        self._chart = chart
        self._stack = stack
        account = chart.folder / "account"
        account.mkdir(exist_ok=True)
        self.token_file = account / "token"
        self.ca_file = account / "ca.crt"
        self.ca_file.write_bytes(chart.api.ca_file.read_bytes())
        (account / "namespace").write_text(chart.namespace)
        self.become(AUTOSCALER)
        self.kinds: tuple[Kind, ...] = tuple(sorted(self._counts()))

    def become(self, account: str) -> None:
        """Have the token of this account from now on."""
        self.token_file.write_text(self.api.token(self._chart.namespace, account))

    def reset(self) -> None:
        """Give all Deployments of the pool no replicas and no owner."""
        for name in self._deployments():
            path = self._chart.path("deployments", name)
            annotations = dict.fromkeys(_KEPT)
            self.api.patch(
                path, {"metadata": {"annotations": annotations}, "spec": {"replicas": 0}}
            )

    def touch(self) -> None:
        """Change all Deployments of the pool, as their controller does, but for what counts."""
        for name in self._deployments():
            note = {"test.example.com/touched": str(time.monotonic_ns())}
            path = self._chart.path("deployments", name)
            self.api.patch(path, {"metadata": {"annotations": note}})

    async def open_actuator(self, name: str = "main", timeout_s: float = 8.0) -> Actuator:
        """Return a new actuator by the policies of the release, with another name and timeout."""
        policies = self.api.get(self._chart.path("configmaps", f"{FULLNAME}-policies"))["data"]
        (text,) = policies.values()
        tables = read_policies(text.encode(), "policies").actuators
        table = next(one for one in tables.values() if isinstance(one, KubernetesTable))
        changed = msgspec.structs.replace(table, timeout_s=timeout_s)
        actuators = await build_actuators({name: changed}, self._dependencies())
        self._stack.push_async_callback(actuators[name].close)
        return actuators[name]

    def replicas(self) -> dict[Kind, int]:
        """Return the replicas of the pool that the platform is told to run, without zeros."""
        return {kind: count for kind, count in self._counts().items() if count}

    def writes(self) -> int:
        """Return how often the specs of its Deployments have changed."""
        return sum(int(one["metadata"]["generation"]) for one in self._deployments().values())

    def _dependencies(self) -> ActuatorDependencies:
        address = urlsplit(self.api.url)
        env = {
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(address.port),
        }
        files = {
            f"MILLRACE_KUBERNETES_{field.upper()}_FILE": str(self.token_file.parent / name)
            for field, name in (("token", "token"), ("ca", "ca.crt"), ("namespace", "namespace"))
        }
        return ActuatorDependencies(
            KubernetesSettings.from_env(files),
            KedaSettings.from_env({}),
            ScalingValues(CLOCK.wall_s),
            CLOCK,
            env,
        )

    def _deployments(self) -> dict[str, dict[str, Any]]:
        selector = f"millrace.dev/pool={self.pool}"
        found = self.api.items(self._chart.path("deployments"), selector)
        return {one["metadata"]["name"]: one for one in found}

    def _counts(self) -> dict[Kind, int]:
        found: dict[Kind, int] = {}
        for one in self._deployments().values():
            labels = one["metadata"]["labels"]
            is_spot = labels["millrace.dev/spot"] == "true"
            zone = labels.get("millrace.dev/zone", "")
            found[labels["millrace.dev/gpu-type"], zone, is_spot] = one["spec"]["replicas"]
        return found


@asynccontextmanager
async def platform_of(chart: Release, pool: str = "chat-8b") -> AsyncIterator[InstalledPlatform]:
    """Yield the platform of a pool that no actuator has scaled yet; close its actuators."""
    async with AsyncExitStack() as stack:
        found = InstalledPlatform(chart, stack, pool)
        found.reset()
        yield found
