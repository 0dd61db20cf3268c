"""Goal: the scheduler and the controllers of Kubernetes do with the chart's pods what it says.

The nodes are labels, taints and numbers of GPUs; kwok makes placed pods ready.
"""

from collections import Counter
from typing import Any, Final

import pytest

from tests.chart.cluster.actuators import platform_of
from tests.chart.cluster.control_plane import ControlPlane
from tests.chart.cluster.kube_api import NODES
from tests.chart.cluster.nodes import SPOT_LABEL, ZONES, cordoned, node, running_nodes
from tests.chart.cluster.releases import FULLNAME, NO_DISK, Release, is_ready
from tests.support.actuator_conformance import order
from tests.support.until import until

KINDS: Final = ("h100", "h100-spot", "l4", "l4-spot")
ZONE: Final = "topology.kubernetes.io/zone"


def zones(chart: Release, pods: list[dict[str, Any]]) -> Counter[str]:
    """Return how many pods are in each zone."""
    found = {one["metadata"]["name"]: one["metadata"]["labels"] for one in chart.api.items(NODES)}
    return Counter(found[pod["spec"]["nodeName"]][ZONE] for pod in pods)


@pytest.mark.parametrize("spread", ["ScheduleAnyway", "DoNotSchedule"])
async def test_the_pods_of_each_kind_are_on_its_nodes_in_all_zones(
    spread: str, chart: Release
) -> None:
    chart.install(["spot.yaml"], NO_DISK, {"spread": {"zones": spread}})
    async with platform_of(chart) as platform:
        assert [f"{kind}{'-spot' * spot}" for kind, _, spot in platform.kinds] == list(KINDS)
        await (await platform.open_actuator()).apply(order(platform, 1, 6, 6, 6, 3))

        for kind, count in zip(KINDS, (6, 6, 6, 3), strict=True):
            pods = chart.started_pods(f"chat-8b-{kind}", count)
            assert {one["spec"]["nodeName"] for one in pods} == {f"{kind}-{z}" for z in ZONES}
            if spread == "DoNotSchedule":
                assert set(zones(chart, pods).values()) == {count // 3}
            # Kubernetes copies the zone of the node: a replica reports it.
            assert {one["metadata"]["labels"][ZONE] for one in pods} == set(ZONES)
    for pod in chart.started_pods("api", 2):
        assert pod["spec"]["nodeName"].startswith("plain-")


async def test_a_pod_without_room_waits_and_starts_on_a_node_that_comes(
    chart: Release, plane: ControlPlane
) -> None:
    """As with an autoscaler of nodes: the pod names what it needs."""
    label = {"test.example.com/nodes": chart.namespace}
    chart.install(["spot.yaml"], NO_DISK, {"gpuTypes": {"l4": {"nodeSelector": label}}})
    async with platform_of(chart, "embed.small") as platform:
        await (await platform.open_actuator()).apply(order(platform, 1, 1))
        until(lambda: unschedulable(chart, "embed-small-l4") == 1)
        new = node(f"new-{chart.namespace}", ZONES[0], gpu_type="l4", gpus=1, labels=label)
        with running_nodes(plane.api, [new]):
            (pod,) = chart.started_pods("embed-small-l4", 1)
            assert pod["spec"]["nodeName"] == f"new-{chart.namespace}"
            await (await platform.open_actuator()).apply(order(platform, 1, 0, sequence=2))
            chart.started_pods("embed-small-l4", 0)


def unschedulable(chart: Release, name: str) -> int:
    """Return how many pods of a Deployment the scheduler found no node for."""
    conditions = [
        one
        for pod in chart.pods(name)
        for one in pod["status"].get("conditions", [])
        if one["type"] == "PodScheduled"
    ]
    return sum(one.get("reason") == "Unschedulable" for one in conditions)


@pytest.mark.parametrize("topology", ["zones", "nodes"])
async def test_nodes_that_a_pod_does_not_tolerate_do_not_count_for_its_spread(
    topology: str, chart: Release, plane: ControlPlane
) -> None:
    """The scheduler counts them by default: a place that must stay empty would hold all others."""
    label = {"test.example.com/nodes": chart.namespace}
    own = {"gpuTypes": {"l4": {"nodeSelector": label}}, "spread": {topology: "DoNotSchedule"}}
    nodes = [
        node(f"own-{chart.namespace}-{zone}", zone, gpu_type="l4", gpus=8, spot=spot, labels=label)
        for zone, spot in zip(ZONES, (False, False, True), strict=True)
    ]
    with running_nodes(plane.api, nodes):
        chart.install(["spot.yaml"], NO_DISK, own)
        chart.scale("embed-small-l4", 6)
        pods = chart.started_pods("embed-small-l4", 6)

        assert zones(chart, pods) == {ZONES[0]: 3, ZONES[1]: 3}
        chart.helm("uninstall", "--wait")


def test_a_zone_that_is_drained_does_not_hold_the_pods_of_the_others(chart: Release) -> None:
    strict = {"spread": {"zones": "DoNotSchedule"}}
    chart.install(["spot.yaml"], NO_DISK, strict)
    with cordoned(chart.api, {f"plain-{ZONES[2]}", f"l4-{ZONES[2]}"}):
        chart.scale("embed-small-l4", 6)
        chart.scale("finaliser", 4)

        gpus = chart.started_pods("embed-small-l4", 6)
        assert zones(chart, gpus) == {ZONES[0]: 3, ZONES[1]: 3}
        assert set(zones(chart, chart.started_pods("finaliser", 4))) >= set(ZONES[:2])


def test_each_replica_has_a_disk_of_its_own_where_a_storage_class_is_named(
    chart: Release,
) -> None:
    """The claim waits for a node, as the pods of `local-nvme` need."""
    api = chart.api
    storage = "/apis/storage.k8s.io/v1/storageclasses"
    volumes = "/api/v1/persistentvolumes"
    disks = [disk(f"{chart.namespace}-{number}", number) for number in range(2)]
    api.create(
        storage,
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "local-nvme"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    try:
        for one in disks:
            api.create(volumes, one)
        chart.install(["spot.yaml"])
        chart.scale("chat-8b-h100", 2)
        pods = chart.started_pods("chat-8b-h100", 2)
        assert {one["spec"]["nodeName"] for one in pods} == {f"h100-{z}" for z in ZONES[:2]}
        claims = api.items(chart.path("persistentvolumeclaims"))
        assert {one["status"]["phase"] for one in claims} == {"Bound"}
        bound = {one["spec"]["volumeName"] for one in claims}
        assert bound == {one["metadata"]["name"] for one in disks}
        done = chart.helm("uninstall", "--wait")
        assert done.returncode == 0, done.stderr
        until(lambda: not api.items(chart.path("persistentvolumeclaims")))
    finally:
        for one in disks:
            api.call("DELETE", f"{volumes}/{one['metadata']['name']}")
        api.call("DELETE", f"{storage}/local-nvme")


def disk(name: str, number: int) -> dict[str, Any]:
    """Return a disk of a node with GPUs."""
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"h100-{ZONES[number]}"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local-nvme",
            "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}},
        },
    }


async def test_a_drain_ends_a_quarter_of_a_variant_and_no_more(chart: Release) -> None:
    chart.install(["spot.yaml"], NO_DISK)
    name = f"{FULLNAME}-chat-8b-l4"
    async with platform_of(chart) as platform:
        await (await platform.open_actuator()).apply(order(platform, 1, 0, 0, 8))
        pods = chart.started_pods("chat-8b-l4", 8)
        until(lambda: budget(chart, name)["disruptionsAllowed"] == 2)
        assert budget(chart, name)["expectedPods"] == 8
        # Nothing takes the pods that replace them.
        with cordoned(chart.api, {pod["spec"]["nodeName"] for pod in pods}):
            answers = [evict(chart, pod) for pod in pods[:3]]
            assert answers == [201, 201, 429]
            until(lambda: unschedulable(chart, "chat-8b-l4") == 2)
            assert budget(chart, name)["disruptionsAllowed"] == 0
            assert evict(chart, pods[3]) == 429
            # A pod that does not work may go (unhealthyPodEvictionPolicy).
            waiting = next(pod for pod in chart.pods("chat-8b-l4") if not is_ready(pod))
            assert evict(chart, waiting) == 201
        chart.started_pods("chat-8b-l4", 8)
        until(lambda: budget(chart, name)["disruptionsAllowed"] == 2)


def test_a_drain_ends_one_pod_of_a_role_at_a_time(chart: Release) -> None:
    chart.install(["minimal.yaml"], {"roles": {"api": {"replicas": 3}}})
    pods = chart.started_pods("api", 3)
    until(lambda: budget(chart, f"{FULLNAME}-api")["disruptionsAllowed"] == 1)
    with cordoned(chart.api, {f"plain-{zone}" for zone in ZONES}):
        assert [evict(chart, pod) for pod in pods[:2]] == [201, 429]
    chart.started_pods("api", 3)


def budget(chart: Release, name: str) -> dict[str, Any]:
    """Return the status of a PodDisruptionBudget."""
    found: dict[str, Any] = chart.api.get(chart.path("poddisruptionbudgets", name))["status"]
    return found


def evict(chart: Release, pod: dict[str, Any]) -> int:
    """Ask for an eviction as `kubectl drain` does; return the status of the answer."""
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return chart.api.status("POST", chart.path("pods", name, "eviction"), body)


async def test_an_upgrade_replaces_the_replicas_of_a_pool_that_has_all_gpus(
    chart: Release, plane: ControlPlane
) -> None:
    label = {"test.example.com/nodes": chart.namespace}
    few = node(f"few-{chart.namespace}", ZONES[0], gpu_type="l4", gpus=2, labels=label)
    types = {"gpuTypes": {"l4": {"nodeSelector": label}}}
    with running_nodes(plane.api, [few]):
        chart.install(["spot.yaml"], NO_DISK, types)
        async with platform_of(chart, "embed.small") as platform:
            await (await platform.open_actuator()).apply(order(platform, 1, 2))
        old = {one["metadata"]["name"] for one in chart.started_pods("embed-small-l4", 2)}
        changed = {"pools": {"embed.small": {"env": {"MILLRACE_LOG_LEVEL": "debug"}}}}
        chart.upgrade(["spot.yaml"], NO_DISK, types, changed)  # waits for them

        new = {one["metadata"]["name"] for one in chart.started_pods("embed-small-l4", 2)}
        assert not old & new


async def test_online_replicas_take_the_gpus_of_bulk_ones_and_not_the_reverse(
    chart: Release, plane: ControlPlane
) -> None:
    label = {"test.example.com/nodes": chart.namespace}
    few = [
        node(f"few-{chart.namespace}-{zone}", zone, gpu_type="l4", gpus=2, spot=True, labels=label)
        for zone in ZONES[:2]
    ]
    spot = {"spot": {"nodeSelector": {**SPOT_LABEL, **label}}}
    with running_nodes(plane.api, few):
        chart.install(["spot.yaml"], NO_DISK, {"gpuTypes": {"l4": spot}})
        async with platform_of(chart, "embed.small") as bulk, platform_of(chart) as online:
            assert bulk.kinds == (("l4", "", False), ("l4", "", True))
            await (await bulk.open_actuator()).apply(order(bulk, 1, 0, 4))
            ended = {one["metadata"]["uid"] for one in chart.started_pods("embed-small-l4-spot", 4)}
            await (await online.open_actuator()).apply(order(online, 1, 0, 0, 0, 3))
            taken = chart.started_pods("chat-8b-l4-spot", 3)
            until(lambda: unschedulable(chart, "embed-small-l4-spot") == 3)
            left = {one["metadata"]["uid"] for one in ready_pods(chart, "embed-small-l4-spot")}
            assert len(left) == 1
            assert left < ended

            # All GPUs are taken: more online ones end the last bulk one, more bulk ones end none.
            await (await bulk.open_actuator()).apply(order(bulk, 1, 0, 6, sequence=2))
            until(lambda: unschedulable(chart, "embed-small-l4-spot") == 5)
            kept = {one["metadata"]["uid"] for one in chart.started_pods("chat-8b-l4-spot", 3)}
            assert kept == {one["metadata"]["uid"] for one in taken}


def ready_pods(chart: Release, name: str) -> list[dict[str, Any]]:
    """Return the pods of a Deployment that work."""
    return [one for one in chart.pods(name) if is_ready(one)]
