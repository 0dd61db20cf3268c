"""Goal: names, counts and pods of Deployments; absurd ones are refused."""

import pytest

from autoscaler.actuators.actuator import (
    KindCount,
    PoolOrder,
    UnexpectedAnswerError,
)
from autoscaler.actuators.kubernetes.deployments import (
    Deployment,
    deployment_name,
    pod_of_replica,
    read_deployment,
    replicas_by_name,
)

ON_DEMAND, SPOT = "m-chat-l4", "m-chat-l4-spot"


@pytest.mark.parametrize(
    ("pool", "kind", "per_zone", "name"),
    [
        ("chat", KindCount(), False, "m-chat"),
        ("chat_8b.v2", KindCount(gpu_type="a.80g", spot=True), False, "m-chat-8b-v2-a-80g-spot"),
        ("chat", KindCount(gpu_type="l4", zone="eu-1a"), False, "m-chat-l4"),
        ("chat", KindCount(gpu_type="l4", zone="eu-1a", spot=True), True, "m-chat-l4-eu-1a-spot"),
    ],
)  # fmt: skip
def test_the_name_of_a_deployment(pool: str, kind: KindCount, per_zone: bool, name: str) -> None:
    assert deployment_name("m", pool, kind, per_zone=per_zone) == name


def test_the_replicas_of_zones_without_deployments_of_their_own_are_added() -> None:
    kinds = tuple(KindCount(gpu_type="l4", zone=zone, replicas=2) for zone in ("a", "b"))

    counts = replicas_by_name(
        "m", PoolOrder(pool="chat", epoch=1, sequence=1, kinds=kinds), per_zone=False
    )
    assert counts == {"m-chat-l4": 4}


@pytest.mark.parametrize(
    ("replica_id", "pod"),
    [
        ("chat-m-chat-l4-7d9f-x2x4z-0123abcd", "m-chat-l4-7d9f-x2x4z"),
        ("other-m-chat-l4-0123abcd", None),
        ("chat-m-chat-l4-0123ABCD", None),
        ("chat-../../secrets-0123abcd", None),
        ("chat-0123abcd", None),
        (f"chat-{'a' * 63}-0123abcd", None),
    ],
)
def test_the_pod_of_a_replica(replica_id: str, pod: str | None) -> None:
    assert pod_of_replica(replica_id, "chat") == pod


def test_a_deployment_without_replicas_has_one_as_in_kubernetes() -> None:
    found = read_deployment({"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {}})

    assert isinstance(found, Deployment)
    assert found.replicas == 1


@pytest.mark.parametrize(
    "item",
    [
        None,
        {"metadata": {"name": "a"}, "spec": {}},
        {"metadata": {"name": "../a", "resourceVersion": "1"}, "spec": {}},
        {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"replicas": 10_001}},
        {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"replicas": 1.5}},
    ],
)
def test_an_absurd_deployment_is_refused(item: object) -> None:
    with pytest.raises(UnexpectedAnswerError):
        read_deployment(item)
