"""Releases of the chart in namespaces that refuse what the Pod Security Standard restricts."""

import contextlib
import itertools
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chart.cluster.control_plane import ControlPlane
from tests.chart.cluster.kube_api import KubeApi, path_of
from tests.chart.tools import run, values_file
from tests.support.chart import CHART, EXAMPLES, merged
from tests.support.until import until

FULLNAME: Final = "millrace"
INSTANCE: Final = f"app.kubernetes.io/instance={FULLNAME}"
WAIT: Final = ("--wait", "--timeout", "110s")
"""Helm waits until each Deployment has its pods."""

NO_DISK: Final[Mapping[str, Any]] = {"pools": {"chat-8b": {"weightCache": {"storageClass": ""}}}}
"""Nothing here makes disks for claims of `local-nvme`."""

_numbers: Final = itertools.count(1)


@dataclass(frozen=True)
class Release:
    """A release called `millrace` in a namespace of its own."""

    plane: ControlPlane
    namespace: str
    folder: Path

    @property
    def api(self) -> KubeApi:
        """The client of an administrator."""
        return self.plane.api

    def path(self, resource: str, name: str = "", subresource: str = "") -> str:
        """Return a path of its namespace."""
        return path_of(self.namespace, resource, name, subresource)

    def helm(self, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command of Helm with this release."""
        where = ("--kubeconfig", self.plane.kubeconfig, "--namespace", self.namespace)
        return run("helm", *command.split(), FULLNAME, *arguments, *where)

    def install(self, examples: Sequence[str], *overs: Mapping[str, Any]) -> None:
        """Install the chart, with values over those of examples."""
        self._succeed("install", CHART, *self.chosen(examples, *overs), *WAIT)

    def upgrade(self, examples: Sequence[str], *overs: Mapping[str, Any]) -> None:
        """Upgrade with all of its values."""
        self._succeed("upgrade", CHART, *self.chosen(examples, *overs), *WAIT)

    def chosen(self, examples: Sequence[str], *overs: Mapping[str, Any]) -> list[str]:
        """Return the options of Helm for values."""
        over: dict[str, Any] = {}
        for one in overs:
            over = merged(over, one)
        files = [*(EXAMPLES / name for name in examples), values_file(self.folder, over)]
        return [part for file in files for part in ("--values", str(file))]

    def _succeed(self, command: str, *arguments: str | Path) -> None:
        done = self.helm(command, *arguments)
        assert done.returncode == 0, done.stderr
        # The API server warns of unknown fields, of deprecated ones, and of what would be refused.
        assert "arning" not in done.stderr, done.stderr

    def deployments(self) -> dict[str, dict[str, Any]]:
        """Return its Deployments, by the names without the first part."""
        found = self.api.items(self.path("deployments"), INSTANCE)
        return {one["metadata"]["name"].removeprefix(f"{FULLNAME}-"): one for one in found}

    def replicas(self) -> dict[str, int]:
        """Return the replicas that each Deployment is told to run."""
        return {name: one["spec"]["replicas"] for name, one in self.deployments().items()}

    def scale(self, name: str, replicas: int) -> None:
        """Set the replicas of a Deployment, as `kubectl scale`."""
        path = self.path("deployments", f"{FULLNAME}-{name}", "scale")
        self.api.patch(path, {"spec": {"replicas": replicas}})

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Return the pods of a Deployment that are not ended."""
        deployment = self.api.get(self.path("deployments", f"{FULLNAME}-{name}"))
        labels = deployment["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found = self.api.items(self.path("pods"), selector)
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def started_pods(self, name: str, count: int) -> list[dict[str, Any]]:
        """Wait until a Deployment has so many ready pods and no other; return them."""

        def has_them() -> bool:
            pods = self.pods(name)
            return len(pods) == count == sum(map(is_ready, pods))

        until(has_them)
        return self.pods(name)


@contextlib.contextmanager
def release(plane: ControlPlane, folder: Path) -> Iterator[Release]:
    """Yield a release that is not installed yet; remove it and all of its namespace."""
    namespace = f"ns-{next(_numbers)}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    metadata = {"name": namespace, "labels": labels}
    plane.api.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    )
    until(lambda: plane.api.find(path_of(namespace, "serviceaccounts", "default")))
    try:
        found = Release(plane, namespace, folder)
        yield found
    finally:
        found.helm("uninstall", "--ignore-not-found", "--no-hooks")
        plane.api.call("DELETE", f"/api/v1/namespaces/{namespace}")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has its condition `Ready`."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
