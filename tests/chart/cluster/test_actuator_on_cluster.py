"""Goal: with the rights that the chart gives it, the actuator scales Deployments of a real cluster.

It has the token of the autoscaler's ServiceAccount, and the API server authorizes by RBAC.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorTimeoutError,
    ForeignScalerError,
    KindCount,
    PoolOrder,
    StaleEpochError,
    UnknownPoolError,
)
from autoscaler.actuators.kubernetes import foreign_scalers
from autoscaler.actuators.kubernetes.kubernetes_client import MERGE_PATCH, KubernetesClient
from tests.chart.cluster.actuators import InstalledPlatform, platform_of
from tests.chart.cluster.control_plane import ControlPlane
from tests.chart.cluster.custom_resources import crds, install_crds, remove_crd
from tests.chart.cluster.nodes import ZONES
from tests.chart.cluster.releases import Release, release
from tests.support.actuator_conformance import (
    HANG_TIMEOUT_S,
    ActuatorConformance,
    FencedPlatformConformance,
    counts_of,
    order,
)
from tests.support.chart import spot_policies
from tests.support.until import until

POOL = "chat-8b"
H100 = "millrace-chat-8b-h100"
L4 = "millrace-chat-8b-l4"
BURST_S = 0.4
"""Shorter than the actuator's pauses together."""

WARM = ("spot.yaml", "warm.yaml")


@pytest.fixture(scope="module")
def chart(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release that all tests of this file share: no test needs its pods."""
    with release(plane, tmp_path_factory.mktemp("chart")) as found:
        found.install(WARM, {"pools": {POOL: {"weightCache": {"storageClass": ""}}}})
        yield found


@pytest.fixture
async def platform(chart: Release) -> AsyncIterator[InstalledPlatform]:
    async with platform_of(chart) as found:
        yield found


class TestInstalled(ActuatorConformance, FencedPlatformConformance):
    """The suite that holds for all actuators."""


@pytest.fixture
async def client(platform: InstalledPlatform) -> AsyncIterator[KubernetesClient]:
    """The actuator's own client, with the account of the autoscaler."""
    found = KubernetesClient(platform.api.url, platform.token_file, platform.ca_file)
    yield found
    await found.close()


async def test_writes_by_an_old_version_are_conflicts(
    platform: InstalledPlatform, client: KubernetesClient, chart: Release
) -> None:
    path = chart.path("deployments", H100)
    old = platform.api.get(path)["metadata"]["resourceVersion"]
    await (await platform.open_actuator()).apply(order(platform, 1, 1))
    metadata = {"name": H100, "resourceVersion": old}
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata}

    with pytest.raises(ActuatorConflictError):
        await client.call("PUT", f"{path}/scale", body={**scale, "spec": {"replicas": 9}})
    annotated = {"metadata": {"resourceVersion": old, "annotations": {"a": "b"}}}
    with pytest.raises(ActuatorConflictError):
        await client.call("PATCH", path, body=annotated, content_type=MERGE_PATCH)
    assert platform.replicas() == {platform.kinds[0]: 1}


async def test_of_autoscalers_that_order_at_once_the_newest_wins(
    platform: InstalledPlatform,
) -> None:
    epochs = range(1, 9)
    actuators = [await platform.open_actuator() for _ in epochs]
    orders = [order(platform, epoch, epoch, epoch) for epoch in epochs]
    both = zip(actuators, orders, strict=True)
    ended = await asyncio.gather(
        *(actuator.apply(one) for actuator, one in both), return_exceptions=True
    )
    refused = (StaleEpochError, ActuatorConflictError)
    assert all(one is None or isinstance(one, refused) for one in ended)

    await actuators[-1].apply(orders[-1])  # as the autoscaler repeats a refused order
    assert platform.replicas() == dict.fromkeys(platform.kinds[:2], 8)
    assert (await actuators[0].observe(POOL)).epoch == 8


async def test_orders_succeed_while_controllers_still_carry_out_others(
    platform: InstalledPlatform,
) -> None:
    """Each pod that starts changes the status of its Deployment, and so the resource version."""
    actuator = await platform.open_actuator()
    for sequence in range(1, 7):
        platform.reset()
        counts = [(sequence + number) % 4 + 1 for number in range(4)]
        await actuator.apply(order(platform, 1, *counts, sequence=sequence))
        assert platform.replicas() == dict(zip(platform.kinds, counts, strict=True))


async def test_an_order_succeeds_after_a_burst_of_other_changes(
    platform: InstalledPlatform,
) -> None:
    actuator = await platform.open_actuator()
    is_changing = threading.Event()

    def change() -> None:
        ends_s = time.monotonic() + BURST_S
        while time.monotonic() < ends_s:
            platform.touch()
            is_changing.set()

    burst = asyncio.create_task(asyncio.to_thread(change))
    await asyncio.to_thread(is_changing.wait)
    await actuator.apply(order(platform, 1, 1, 2, 3, 4))
    assert platform.replicas() == dict(zip(platform.kinds, (1, 2, 3, 4), strict=True))
    await burst


async def test_what_is_not_there_is_a_named_error(
    platform: InstalledPlatform, client: KubernetesClient, chart: Release
) -> None:
    actuator = await platform.open_actuator()
    unknown = order(platform, 1, 1)
    with pytest.raises(UnknownPoolError):
        await actuator.observe("nowhere")
    with pytest.raises(UnknownPoolError):
        await actuator.apply(PoolOrder(pool="nowhere", epoch=1, sequence=1, kinds=unknown.kinds))
    missing = KindCount(gpu_type="b200", replicas=1)
    with pytest.raises(UnknownPoolError):
        await actuator.apply(PoolOrder(pool=POOL, epoch=1, sequence=1, kinds=(missing,)))
    assert platform.replicas() == {}
    # A Deployment that is deleted between the reading and the writing.
    path = chart.path("deployments", L4)
    kept = platform.api.get(path)
    platform.api.call("DELETE", path)
    try:
        until(lambda: platform.api.find(path) is None)
        with pytest.raises(UnknownPoolError):
            await client.call("PATCH", path, body={"metadata": {}}, content_type=MERGE_PATCH)
    finally:
        del kept["metadata"]["resourceVersion"], kept["metadata"]["uid"], kept["status"]
        platform.api.create(chart.path("deployments"), kept)


@pytest.mark.parametrize("account", ["api", "gpu-consumer", "intake", "migration"])
async def test_the_accounts_of_other_roles_are_denied(
    account: str, platform: InstalledPlatform
) -> None:
    actuator = await platform.open_actuator()
    platform.become(f"millrace-{account}")

    with pytest.raises(ActuatorDeniedError):
        await actuator.observe(POOL)
    with pytest.raises(ActuatorDeniedError):
        await actuator.apply(order(platform, 1, 1))
    assert platform.replicas() == {}


async def test_a_token_that_is_replaced_is_read_anew(platform: InstalledPlatform) -> None:
    actuator = await platform.open_actuator()
    good = platform.token_file.read_text()
    platform.token_file.write_text("no-token")
    with pytest.raises(ActuatorDeniedError):
        await actuator.apply(order(platform, 1, 1))

    platform.token_file.write_text(good)
    await actuator.apply(order(platform, 1, 1))
    assert platform.replicas() == {platform.kinds[0]: 1}


async def test_an_api_server_that_hangs_is_a_timeout(
    platform: InstalledPlatform, plane: ControlPlane
) -> None:
    await (await platform.open_actuator()).apply(order(platform, 1, 2))
    actuator = await platform.open_actuator(timeout_s=HANG_TIMEOUT_S)
    with plane.stopped_server():
        with pytest.raises(ActuatorTimeoutError):
            await actuator.observe(POOL)
        with pytest.raises(ActuatorTimeoutError):
            await actuator.apply(order(platform, 1, 5, sequence=2))
    patient = await platform.open_actuator()
    await patient.apply(order(platform, 1, 3, sequence=3))
    assert platform.replicas() == {platform.kinds[0]: 3}


@pytest.mark.parametrize(
    ("resource", "version", "spec"),
    [
        ("horizontalpodautoscalers", "autoscaling/v2", {"maxReplicas": 5}),
        (
            "scaledobjects",
            "keda.sh/v1alpha1",
            {"triggers": [{"type": "cron", "metadata": {"timezone": "UTC"}}]},
        ),
    ],
)
async def test_another_scaler_of_the_pool_is_refused(
    resource: str,
    version: str,
    spec: dict[str, object],
    platform: InstalledPlatform,
    chart: Release,
) -> None:
    kinds = {"horizontalpodautoscalers": "HorizontalPodAutoscaler", "scaledobjects": "ScaledObject"}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": H100}
    scaler = {
        "apiVersion": version,
        "kind": kinds[resource],
        "metadata": {"name": "other"},
        "spec": {**spec, "scaleTargetRef": target},
    }
    platform.api.create(chart.path(resource), scaler)
    try:
        with pytest.raises(ForeignScalerError):
            await (await platform.open_actuator()).apply(order(platform, 1, 1))
        assert platform.replicas() == {}
    finally:
        platform.api.call("DELETE", chart.path(resource, "other"))
    await (await platform.open_actuator()).apply(order(platform, 1, 1))
    assert platform.replicas() == {platform.kinds[0]: 1}


async def test_a_cluster_without_keda_has_no_scaled_objects(platform: InstalledPlatform) -> None:
    keda = [one for one in crds() if one["spec"]["group"] == "keda.sh"]
    for crd in keda:
        remove_crd(platform.api, crd["metadata"]["name"])
    try:
        await (await platform.open_actuator()).apply(order(platform, 1, 1))
    finally:
        install_crds(platform.api, keda)
    assert platform.replicas() == {platform.kinds[0]: 1}


async def test_lists_of_several_pages_are_read_whole(
    platform: InstalledPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_scalers, "PAGE_ITEMS", 1)
    actuator = await platform.open_actuator()
    await actuator.apply(order(platform, 1, 1, 2, 3, 4))

    assert platform.replicas() == dict(zip(platform.kinds, (1, 2, 3, 4), strict=True))
    assert counts_of((await actuator.observe(POOL)).kinds) == platform.replicas()


async def test_the_replica_that_an_order_names_is_the_one_that_goes(
    platform: InstalledPlatform, chart: Release
) -> None:
    actuator = await platform.open_actuator()
    kinds = platform.kinds
    assert kinds[0] == ("h100", "", False)
    await actuator.apply(order(platform, 1, 4))
    names = sorted(one["metadata"]["name"] for one in chart.started_pods("chat-8b-h100", 4))
    chosen = names[1:3]
    removals = tuple(f"{POOL}-{name}-0123abcd" for name in chosen)
    fewer = order(platform, 1, 2, sequence=2)
    await actuator.apply(
        PoolOrder(pool=POOL, epoch=1, sequence=2, kinds=fewer.kinds, removals=removals)
    )

    kept = chart.started_pods("chat-8b-h100", 2)
    assert {one["metadata"]["name"] for one in kept} == set(names) - set(chosen)


async def test_roles_that_the_policies_scale_are_scaled_and_no_other(
    platform: InstalledPlatform, chart: Release
) -> None:
    actuator = await platform.open_actuator()
    for pool in ("role:api", "role:batcher", "role:results-writer"):
        five = PoolOrder(pool=pool, epoch=1, sequence=1, kinds=(KindCount(replicas=5),))
        await actuator.apply(five)
    with pytest.raises(ActuatorDeniedError):  # its mode is `observe`
        await actuator.apply(
            PoolOrder(pool="role:intake", epoch=1, sequence=1, kinds=(KindCount(replicas=5),))
        )
    found = chart.replicas()
    assert {name for name in found if found[name] == 5} == {"api", "batcher-bulk", "results-writer"}


async def test_a_pool_with_deployments_of_zones_is_scaled_by_zone(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("zones")
    policies = spot_policies('release = "millrace"', 'release = "millrace"\nper_zone = true')
    text = policies["autoscaler"]["policies"]
    zones = ", ".join(f'"{zone}"' for zone in ZONES)
    policies["autoscaler"]["policies"] = text.replace(
        "spot_share = 0.5", f"zones = [{zones}]"
    ).replace("spot_share = 1", f"zones = [{zones}]")
    variants = [{"gpuType": "l4", "zone": zone} for zone in ZONES]
    both = [*variants, *({"gpuType": "h100", "zone": zone} for zone in ZONES)]
    pools = {
        POOL: {"variants": both, "weightCache": {"storageClass": ""}},
        "embed.small": {"variants": variants},
    }
    with release(plane, folder) as chart:
        chart.install(["spot.yaml"], policies, {"pools": pools})
        async with platform_of(chart, "embed.small") as platform:
            assert [kind[1] for kind in platform.kinds] == list(ZONES)
            await (await platform.open_actuator()).apply(order(platform, 1, 1, 0, 2))
            assert list(platform.replicas().values()) == [1, 2]
            for zone, count in zip(ZONES, (1, 0, 2), strict=True):
                pods = chart.started_pods(f"embed-small-l4-{zone}", count)
                nodes = {one["spec"]["nodeName"] for one in pods}
                assert nodes <= {f"l4-{zone}"}
