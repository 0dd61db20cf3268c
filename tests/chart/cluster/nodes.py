"""Nodes without machines: their labels, taints and GPUs are those that `spot.yaml` asks for."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from tests.chart.cluster.kube_api import NODES, KubeApi
from tests.support.until import until

REGION: Final = "eu-central-1"
ZONES: Final = tuple(f"{REGION}{letter}" for letter in "abc")
GPU_TAINT: Final = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
SPOT_TAINT: Final = {"key": "millrace.dev/spot", "value": "true", "effect": "NoSchedule"}
SPOT_LABEL: Final = {"karpenter.sh/capacity-type": "spot"}


def node(
    name: str,
    zone: str,
    *,
    gpu_type: str = "",
    gpus: int = 0,
    spot: bool = False,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a node of 64 CPUs. One with GPUs takes only pods that tolerate its taints."""
    room = {"cpu": "64", "memory": "1Ti", "pods": "110"}
    if gpus:
        room["nvidia.com/gpu"] = str(gpus)
    found = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": zone[:-1],
        **({"millrace.dev/gpu-type": gpu_type} if gpu_type else {}),
        **(SPOT_LABEL if spot else {}),
        **(labels or {}),
    }
    taints = [GPU_TAINT] * bool(gpus) + [SPOT_TAINT] * spot
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": found},
        "spec": {"taints": taints},
        "status": {"allocatable": room, "capacity": room},
    }


def fleet(zones: Iterable[str] = ZONES) -> list[dict[str, Any]]:
    """Return for each zone one node without GPUs, and one of 8 GPUs for each type, also as spot."""
    found = []
    for zone in zones:
        found.append(node(f"plain-{zone}", zone))
        for gpu_type in ("h100", "l4"):
            for spot in (False, True):
                name = f"{gpu_type}{'-spot' * spot}-{zone}"
                found.append(node(name, zone, gpu_type=gpu_type, gpus=8, spot=spot))
    return found


@contextlib.contextmanager
def running_nodes(api: KubeApi, nodes: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Create nodes, wait until they are ready and untainted, yield their names; delete them."""
    names: list[str] = []
    try:
        for one in nodes:
            api.create(NODES, one)
            names.append(one["metadata"]["name"])
        for name in names:
            until(partial(_is_ready, api, name))
        yield names
    finally:
        for name in names:
            api.call("DELETE", f"{NODES}/{name}")


@contextlib.contextmanager
def cordoned(api: KubeApi, names: Iterable[str]) -> Iterator[None]:
    """Let no new pod onto the nodes, as `kubectl cordon`."""
    chosen = sorted(names)
    try:
        for name in chosen:
            api.patch(f"{NODES}/{name}", {"spec": {"unschedulable": True}})
        yield
    finally:
        for name in chosen:
            api.patch(f"{NODES}/{name}", {"spec": {"unschedulable": None}})


def _is_ready(api: KubeApi, name: str) -> bool:
    found = api.get(f"{NODES}/{name}")
    conditions = found["status"].get("conditions", [])
    taints = {taint["key"] for taint in found["spec"].get("taints", [])}
    is_tainted = any(key.startswith("node.kubernetes.io/") for key in taints)
    return not is_tainted and any(
        one["type"] == "Ready" and one["status"] == "True" for one in conditions
    )
