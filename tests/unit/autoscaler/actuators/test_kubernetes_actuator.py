"""Goal: orders reach Deployments through every race with controllers, people and other scalers.

The API server is a fake with optimistic concurrency; `make cluster` has a real one.
"""

import itertools

import pytest

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    KindCount,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.actuators.kubernetes import kubernetes_actuator
from autoscaler.actuators.kubernetes.kubernetes_actuator import DELETION_COST, REMOVED_COST
from tests.support.actuator_conformance import order
from tests.support.actuator_platforms import KubernetesPlatform
from tests.unit.autoscaler.actuators.kubernetes_pool import ON_DEMAND, SPOT, scales

NO_PAUSES_S = (0.0,) * len(kubernetes_actuator.CONFLICT_PAUSES_S)


def add_pod(
    platform: KubernetesPlatform, name: str, annotations: dict[str, str] | None = None
) -> None:
    metadata = {"name": name, "resourceVersion": "1", "labels": {"millrace.dev/pool": "chat"}}
    platform.api.pods[name] = {"metadata": {**metadata, "annotations": annotations or {}}}


async def test_a_conflict_with_a_controller_is_read_again_and_done(
    platform: KubernetesPlatform,
) -> None:
    actuator = await platform.open_actuator()
    conflicts = iter([True])

    def change_status(resource: str) -> None:
        if resource == "deployments/scale" and next(conflicts, False):
            platform.api.touch(platform.api.deployments[ON_DEMAND])

    platform.api.before_write = change_status
    await actuator.apply(order(platform, 1, 3))

    assert scales(platform) == {ON_DEMAND: 3, SPOT: 0}
    assert platform.api.calls.count(("PUT", "deployments/scale")) == 2


async def test_controllers_that_change_both_deployments_after_each_write_delay_an_order(
    platform: KubernetesPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a real cluster does: the status follows the annotations and the scale."""
    monkeypatch.setattr(kubernetes_actuator, "CONFLICT_PAUSES_S", NO_PAUSES_S)
    actuator = await platform.open_actuator()
    conflicts = itertools.repeat(True, len(NO_PAUSES_S))

    def change_status(resource: str) -> None:
        if next(conflicts, False):
            for deployment in platform.api.deployments.values():
                platform.api.touch(deployment)

    platform.api.before_write = change_status
    await actuator.apply(order(platform, 1, 3, 2))

    assert scales(platform) == {ON_DEMAND: 3, SPOT: 2}


async def test_conflicts_without_an_end_are_an_error(
    platform: KubernetesPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_actuator, "CONFLICT_PAUSES_S", NO_PAUSES_S)
    actuator = await platform.open_actuator()
    platform.api.before_write = lambda _: platform.api.touch(platform.api.deployments[ON_DEMAND])

    with pytest.raises(ActuatorConflictError):
        await actuator.apply(order(platform, 1, 3))
    assert scales(platform) == {ON_DEMAND: 0, SPOT: 0}
    tried = platform.api.calls.count(("PATCH", "deployments"))
    assert tried == len(NO_PAUSES_S) + 1


async def test_a_newer_autoscaler_between_two_writes_wins(platform: KubernetesPlatform) -> None:
    older, newer = await platform.open_actuator(), await platform.open_actuator()
    await older.apply(order(platform, 4, 1, 1))

    def take_over(resource: str) -> None:
        if resource == "deployments/scale":
            deployment = platform.api.deployments[ON_DEMAND]
            deployment["metadata"]["annotations"]["millrace.dev/scaling-epoch"] = "5"
            deployment["spec"]["replicas"] = 2
            platform.api.touch(deployment)

    platform.api.before_write = take_over
    with pytest.raises(StaleEpochError):
        await older.apply(order(platform, 4, 9, 1, sequence=2))
    assert scales(platform) == {ON_DEMAND: 2, SPOT: 1}

    platform.api.before_write = None
    await newer.apply(order(platform, 5, 3, 0))
    assert scales(platform) == {ON_DEMAND: 3, SPOT: 0}


async def test_an_order_fences_deployments_that_it_does_not_change(
    platform: KubernetesPlatform,
) -> None:
    await (await platform.open_actuator()).apply(order(platform, 6, 1))

    annotations = platform.api.deployments[SPOT]["metadata"]["annotations"]
    assert annotations["millrace.dev/scaling-epoch"] == "6"
    assert annotations["millrace.dev/actuator"] == "main"


async def test_a_count_that_was_changed_by_hand_is_set_back(platform: KubernetesPlatform) -> None:
    actuator = await platform.open_actuator()
    await actuator.apply(order(platform, 1, 3))
    platform.api.deployments[ON_DEMAND]["spec"]["replicas"] = 40
    platform.api.touch(platform.api.deployments[ON_DEMAND])

    observed = await actuator.observe(platform.pool)
    assert sum(kind.replicas for kind in observed.kinds) == 40
    await actuator.apply(order(platform, 1, 3))
    assert scales(platform) == {ON_DEMAND: 3, SPOT: 0}


async def test_a_deployment_of_another_release_is_neither_read_nor_scaled(
    platform: KubernetesPlatform,
) -> None:
    labels = dict(platform.api.deployments[ON_DEMAND]["metadata"]["labels"])
    others = ("n-chat-l4", "m-chat-chat-l4", "m-chat-l4-x")
    for name in others:
        platform.api.add_deployment(name, labels, replicas=7)
    actuator = await platform.open_actuator()
    await actuator.apply(order(platform, 1, 3))

    assert scales(platform) == {ON_DEMAND: 3, SPOT: 0, **dict.fromkeys(others, 7)}
    assert all("annotations" not in platform.api.deployments[name]["metadata"] for name in others)
    observed = await actuator.observe("chat")
    assert sum(kind.replicas for kind in observed.kinds) == 3


async def test_a_pool_of_another_release_alone_is_unknown(platform: KubernetesPlatform) -> None:
    found = platform.api.deployments
    found["other-l4"] = found.pop(ON_DEMAND)
    found["other-l4"]["metadata"]["name"] = "other-l4"
    del found[SPOT]
    with pytest.raises(UnknownPoolError):
        await (await platform.open_actuator()).apply(order(platform, 1, 0))


async def test_the_pods_to_remove_are_the_cheapest_before_the_scale_shrinks(
    platform: KubernetesPlatform,
) -> None:
    for name in ("m-chat-l4-a1", "m-chat-l4-a2", "m-other-l4-a1"):
        add_pod(platform, name)
    actuator = await platform.open_actuator()
    await actuator.apply(order(platform, 1, 3))
    shrunk = order(platform, 1, 1, sequence=2)
    removals = (
        "chat-m-chat-l4-a2-0123abcd",
        "chat-m-chat-l4-gone-0123abcd",
        "chat-../x-00000000",
        "chat-m-other-l4-a1-0123abcd",
    )
    platform.api.calls.clear()
    await actuator.apply(
        PoolOrder(pool="chat", epoch=1, sequence=2, kinds=shrunk.kinds, removals=removals)
    )

    costs = {
        name: pod["metadata"].get("annotations", {}).get(DELETION_COST)
        for name, pod in platform.api.pods.items()
    }
    assert costs == {"m-chat-l4-a1": None, "m-chat-l4-a2": REMOVED_COST, "m-other-l4-a1": None}
    writes = [call for call in platform.api.calls if call[0] != "GET"]
    assert writes == [("PATCH", "pods"), ("PATCH", "pods"), ("PUT", "deployments/scale")]
    assert scales(platform) == {ON_DEMAND: 1, SPOT: 0}


async def test_a_pod_that_is_to_stay_loses_its_mark(platform: KubernetesPlatform) -> None:
    """An earlier order was to remove it, and the autoscaler has decided otherwise."""
    for name in ("m-chat-l4-a1", "m-chat-l4-a2"):
        add_pod(platform, name, {DELETION_COST: REMOVED_COST})
    add_pod(platform, "m-chat-l4-a3", {DELETION_COST: "7"})  # of the operator
    await (await platform.open_actuator()).apply(order(platform, 1, 3))
    shrunk = order(platform, 1, 2, sequence=2)
    removals = ("chat-m-chat-l4-a2-0123abcd",)
    platform.api.calls.clear()
    await (await platform.open_actuator()).apply(
        PoolOrder(pool="chat", epoch=1, sequence=2, kinds=shrunk.kinds, removals=removals)
    )

    assert {name: pod["metadata"]["annotations"] for name, pod in platform.api.pods.items()} == {
        "m-chat-l4-a1": {},
        "m-chat-l4-a2": {DELETION_COST: REMOVED_COST},
        "m-chat-l4-a3": {DELETION_COST: "7"},
    }
    assert platform.api.calls.count(("PATCH", "pods")) == 1


async def test_deployments_grow_even_if_no_pod_can_be_marked(platform: KubernetesPlatform) -> None:
    actuator = await platform.open_actuator()
    await actuator.apply(order(platform, 1, 0, 2))
    platform.api.denied = {("GET", "pods")}

    with pytest.raises(ActuatorDeniedError):
        await actuator.apply(order(platform, 1, 3, 1, sequence=2))
    assert scales(platform) == {ON_DEMAND: 3, SPOT: 2}


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("GET", "deployments"),
        ("PATCH", "deployments"),
        ("PUT", "deployments/scale"),
        ("GET", "horizontalpodautoscalers"),
    ],
)
async def test_each_right_that_is_missing_is_a_denial(
    platform: KubernetesPlatform, verb: str, resource: str
) -> None:
    actuator = await platform.open_actuator()
    platform.api.denied = {(verb, resource)}

    with pytest.raises(ActuatorDeniedError):
        await actuator.apply(order(platform, 1, 3))
    assert scales(platform) == {ON_DEMAND: 0, SPOT: 0}


async def test_a_token_that_was_rotated_is_read_again(platform: KubernetesPlatform) -> None:
    actuator = await platform.open_actuator()
    await actuator.apply(order(platform, 1, 1))
    platform.api.tokens = {"second-token"}
    with pytest.raises(ActuatorDeniedError):
        await actuator.apply(order(platform, 1, 2))

    platform.token_file.write_text("second-token\n")
    await actuator.apply(order(platform, 1, 2))
    assert scales(platform) == {ON_DEMAND: 2, SPOT: 0}


async def test_lists_are_read_page_by_page(platform: KubernetesPlatform) -> None:
    platform.api.page_items = 1
    await (await platform.open_actuator()).apply(order(platform, 1, 2, 3))

    assert scales(platform) == {ON_DEMAND: 2, SPOT: 3}


async def test_a_kind_without_a_deployment_is_unknown(platform: KubernetesPlatform) -> None:
    kinds = (KindCount(gpu_type="h100", replicas=1), KindCount(gpu_type="l4", replicas=1))

    with pytest.raises(UnknownPoolError):
        await (await platform.open_actuator()).apply(
            PoolOrder(pool="chat", epoch=1, sequence=1, kinds=kinds)
        )
    assert scales(platform) == {ON_DEMAND: 0, SPOT: 0}


async def test_an_epoch_that_is_no_number_is_named(platform: KubernetesPlatform) -> None:
    metadata = platform.api.deployments[ON_DEMAND]["metadata"]
    metadata["annotations"] = {"millrace.dev/scaling-epoch": "-1"}
    actuator = await platform.open_actuator()

    with pytest.raises(UnexpectedAnswerError):
        await actuator.apply(order(platform, 1, 3))


async def test_a_server_that_is_gone_is_an_error(platform: KubernetesPlatform) -> None:
    platform._url = "http://127.0.0.1:1"

    with pytest.raises(ActuatorError) as raised:
        await (await platform.open_actuator()).observe("chat")
    assert raised.value.code == "actuator_failed"


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("role:api", "m-api"),
        ("role:intake", "m-intake"),
        ("role:batcher", "m-batcher-bulk"),
        ("role:results-writer", "m-results-writer"),
    ],
)
async def test_a_role_is_the_deployment_of_its_name(
    platform: KubernetesPlatform, role: str, name: str
) -> None:
    platform.api.add_deployment(name, {"app.kubernetes.io/component": name}, replicas=2)
    platform.api.add_deployment("m-batcher-interactive", {}, replicas=2)
    before = scales(platform)
    actuator = await platform.open_actuator()
    kinds = (KindCount(replicas=5),)
    await actuator.apply(PoolOrder(pool=role, epoch=3, sequence=1, kinds=kinds))

    assert scales(platform) == before | {name: 5}
    observed = await actuator.observe(role)
    assert (observed.kinds, observed.epoch) == (kinds, 3)
    with pytest.raises(StaleEpochError):
        await actuator.apply(PoolOrder(pool=role, epoch=2, sequence=9, kinds=kinds))


async def test_a_role_without_a_deployment_is_unknown(platform: KubernetesPlatform) -> None:
    actuator = await platform.open_actuator()
    with pytest.raises(UnknownPoolError):
        await actuator.apply(
            PoolOrder(pool="role:api", epoch=1, sequence=1, kinds=(KindCount(replicas=1),))
        )
