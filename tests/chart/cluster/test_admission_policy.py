"""Goal: who has the token of the autoscaler changes what the actuator writes, and nothing else.

RBAC has no rights on fields; a ValidatingAdmissionPolicy of the chart has. What the actuator writes
is in test_actuator_on_cluster.py, too, under the same policy.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from autoscaler.actuators.kubernetes.deployments import ACTUATOR_ANNOTATION, EPOCH_ANNOTATION
from autoscaler.actuators.kubernetes.kubernetes_actuator import DELETION_COST, REMOVED_COST
from tests.chart.cluster.control_plane import ControlPlane
from tests.chart.cluster.kube_api import APPLY_PATCH, JSON_PATCH, POLICIES, KubeApi
from tests.chart.cluster.releases import NO_DISK, Release, release
from tests.support.chart import key_of, objects
from tests.support.until import until

AUTOSCALER: Final = "millrace-autoscaler"
DEPLOYMENT: Final = "millrace-api"
EXAMPLES: Final = ("spot.yaml", "warm.yaml")
WITHOUT: Final = {"autoscaler": {"admissionPolicy": {"create": False}}}
FENCE: Final = {EPOCH_ANNOTATION: "7", ACTUATOR_ANNOTATION: "cluster"}
OWNER: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "other",
    "uid": "00000000-0000-4000-8000-000000000000",
}
FOREIGN: Final = {"metadata": {"annotations": {"a": "b"}}}
POD_SPEC: Final = "/spec/template/spec"
CONTAINER: Final = f"{POD_SPEC}/containers/0"
MANY: Final = 2_000


@pytest.fixture(scope="module")
def chart(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release with the policy, once the API server follows it."""
    with release(plane, tmp_path_factory.mktemp("chart")) as found:
        found.install(EXAMPLES, NO_DISK)
        await_policy(found)
        yield found


@pytest.fixture
def autoscaler(chart: Release) -> Iterator[KubeApi]:
    """A client with the token of the autoscaler."""
    with chart.api.as_account(chart.namespace, AUTOSCALER) as found:
        yield found


@pytest.fixture
def pod(chart: Release) -> str:
    """The path of a pod."""
    return chart.path("pods", chart.started_pods("intake", 2)[0]["metadata"]["name"])


def await_policy(chart: Release) -> None:
    """Wait until a foreign annotation is refused: the API server reads policies by watching."""
    path = chart.path("deployments", DEPLOYMENT)
    with chart.api.as_account(chart.namespace, AUTOSCALER) as api:
        until(lambda: api.send("PATCH", path, FOREIGN, dryRun="All").status_code == 403)


def add(path: str, value: object) -> dict[str, object]:
    """Return an operation that adds or replaces."""
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> dict[str, object]:
    """Return an operation that removes."""
    return {"op": "remove", "path": path}


def of_label(name: str) -> str:
    """Return the path of a label."""
    return "/metadata/labels/" + name.replace("/", "~1")


def of_annotation(name: str) -> str:
    """Return the path of an annotation."""
    return "/metadata/annotations/" + name.replace("/", "~1")


METADATA: Final = {
    "a new label": add("/metadata/labels/a", "b"),
    "another label": add(of_label("app.kubernetes.io/component"), "other"),
    "a label less": remove(of_label("app.kubernetes.io/component")),
    "no labels": remove("/metadata/labels"),
    "an owner": add("/metadata/ownerReferences", [OWNER]),
    "a finalizer": add("/metadata/finalizers", ["example.com/kept"]),
    "annotations, all others": add("/metadata/annotations", {"a": "b"}),
}

DEPLOYMENTS: Final = METADATA | {
    "an image": add(f"{CONTAINER}/image", "other"),
    "a variable": add(f"{CONTAINER}/env/-", {"name": "A", "value": "b"}),
    "a variable of a Secret": add(
        f"{CONTAINER}/env/0",
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "millrace-webhooks", "key": "k"}}},
    ),
    "a command": add(f"{CONTAINER}/command", ["sh"]),
    "arguments": add(f"{CONTAINER}/args", ["other"]),
    "a volume": add(
        f"{POD_SPEC}/volumes/-",
        {"name": "a", "secret": {"secretName": "millrace-kafka-operator"}},
    ),
    "a container": add(f"{POD_SPEC}/containers/-", {"name": "other", "image": "other"}),
    "a first container": add(f"{POD_SPEC}/initContainers", [{"name": "o", "image": "o"}]),
    "an account": add(f"{POD_SPEC}/serviceAccountName", AUTOSCALER),
    "a token": add(f"{POD_SPEC}/automountServiceAccountToken", True),
    "replicas past the scale": add("/spec/replicas", 9),
    "a pause": add("/spec/paused", True),
    "an annotation of its pods": add("/spec/template/metadata/annotations", {"a": "b"}),
    "a label of its pods": add("/spec/template/metadata/labels/a", "b"),
    "a new annotation": add("/metadata/annotations/a", "b"),
    "another annotation": add(of_annotation("meta.helm.sh/release-name"), "other"),
    "an annotation less": remove(of_annotation("meta.helm.sh/release-name")),
    "the annotation that is for pods": add(of_annotation(DELETION_COST), REMOVED_COST),
    "no annotations": remove("/metadata/annotations"),
}

PODS: Final = METADATA | {
    "an image": add("/spec/containers/0/image", "other"),
    "a time to live": add("/spec/activeDeadlineSeconds", 1),
    "a toleration": add("/spec/tolerations/-", {"key": "a", "operator": "Exists"}),
    "no owner": remove("/metadata/ownerReferences"),
    "annotations that are for Deployments": add("/metadata/annotations", FENCE),
}


@pytest.mark.parametrize("change", DEPLOYMENTS)
def test_a_deployment_keeps_all_but_the_annotations_of_the_actuator(
    change: str, chart: Release, autoscaler: KubeApi
) -> None:
    check_refused(chart, autoscaler, chart.path("deployments", DEPLOYMENT), DEPLOYMENTS[change])


@pytest.mark.parametrize("change", PODS)
def test_a_pod_keeps_all_but_its_cost_of_deletion(
    change: str, chart: Release, autoscaler: KubeApi, pod: str
) -> None:
    check_refused(chart, autoscaler, pod, PODS[change])


def check_refused(
    chart: Release, autoscaler: KubeApi, path: str, operation: dict[str, object]
) -> None:
    """Check that the policy refuses what an administrator may do, so that it is no other reason."""
    allowed = chart.api.send("PATCH", path, [operation], content_type=JSON_PATCH, dryRun="All")
    assert allowed.status_code == 200, allowed.text
    answer = autoscaler.send("PATCH", path, [operation], content_type=JSON_PATCH)

    assert answer.status_code == 403, answer.text
    message = answer.json()["message"]
    assert f"ValidatingAdmissionPolicy '{chart.namespace}-{AUTOSCALER}'" in message
    assert "The autoscaler may change no" in message


def test_neither_another_kind_of_patch_nor_a_change_beside_gets_past(
    chart: Release, autoscaler: KubeApi
) -> None:
    path = chart.path("deployments", DEPLOYMENT)
    beside = [add(of_annotation(EPOCH_ANNOTATION), "7"), add(f"{CONTAINER}/image", "other")]
    answer = autoscaler.send("PATCH", path, beside, content_type=JSON_PATCH)
    assert answer.status_code == 403, answer.text
    answer = autoscaler.send("PATCH", path, {"spec": {"paused": True}})
    assert answer.status_code == 403, answer.text
    strategic = {"containers": [{"name": "api", "image": "other"}]}
    answer = autoscaler.send(
        "PATCH",
        path,
        {"spec": {"template": {"spec": strategic}}},
        content_type="application/strategic-merge-patch+json",
    )
    assert answer.status_code == 403, answer.text
    applied = {"spec": {"template": {"spec": strategic}}}
    assert apply(autoscaler, path, applied, "other") == 403
    installed = objects(chart.helm("get manifest").stdout)
    (own,) = [one for one in installed if key_of(one) == ("Deployment", DEPLOYMENT)]
    own["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert apply(autoscaler, path, own, "helm") == 403  # as Helm, with all that it owns


def apply(api: KubeApi, path: str, change: dict[str, Any], manager: str) -> int:
    """Return the status of a server-side apply by force."""
    body = {"apiVersion": "apps/v1", "kind": "Deployment", **change}
    params: dict[str, str] = {"fieldManager": manager, "force": "true"}
    return api.send("PATCH", path, body, content_type=APPLY_PATCH, **params).status_code


def test_what_the_actuator_writes_is_allowed(chart: Release, autoscaler: KubeApi, pod: str) -> None:
    path = chart.path("deployments", "millrace-batcher-bulk")
    before = chart.api.get(path)
    for epoch in ("7", "8"):
        autoscaler.patch(path, {"metadata": {"annotations": {**FENCE, EPOCH_ANNOTATION: epoch}}})
    assert apply(autoscaler, path, {"metadata": {"annotations": FENCE}}, "other") == 200
    after = chart.api.get(path)
    assert after["metadata"]["annotations"] == {**before["metadata"]["annotations"], **FENCE}
    assert after["spec"] == before["spec"]
    autoscaler.call(
        "PUT",
        f"{path}/scale",
        {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": "millrace-batcher-bulk", "namespace": chart.namespace},
            "spec": {"replicas": 3},
        },
    )
    assert chart.api.get(path)["spec"]["replicas"] == 3
    # A pod of the chart has no annotations at first, and none when the cost is gone.
    for cost in (REMOVED_COST, None):
        assert "annotations" not in chart.api.get(pod)["metadata"]
        autoscaler.patch(pod, {"metadata": {"annotations": {DELETION_COST: cost}}})
        if cost is not None:
            assert chart.api.get(pod)["metadata"]["annotations"] == {DELETION_COST: cost}
            autoscaler.patch(pod, {"metadata": {"annotations": {DELETION_COST: None}}})


def test_who_owns_an_unchanged_field_is_not_limited(chart: Release, autoscaler: KubeApi) -> None:
    """Each change writes `managedFields`. docs/kubernetes.md says what follows."""
    path = chart.path("deployments", "millrace-results-writer")
    before = chart.api.get(path)["spec"]
    same = {"spec": {"revisionHistoryLimit": before["revisionHistoryLimit"]}}

    assert apply(autoscaler, path, same, "other") == 200
    found = chart.api.get(path)
    assert found["spec"] == before
    assert "other" in {one["manager"] for one in found["metadata"]["managedFields"]}


def test_an_object_with_many_annotations_is_within_the_cost_of_a_policy(
    chart: Release, autoscaler: KubeApi
) -> None:
    path = chart.path("deployments", DEPLOYMENT)
    many = {f"test.example.com/{number}": "x" * 64 for number in range(MANY)}
    chart.api.patch(path, {"metadata": {"annotations": many}})
    try:
        autoscaler.patch(path, {"metadata": {"annotations": FENCE}})
        assert autoscaler.status("PATCH", path, FOREIGN) == 403
    finally:
        chart.api.patch(path, {"metadata": {"annotations": dict.fromkeys(many)}})


def test_the_api_server_finds_nothing_wrong_in_the_types_of_the_policy(chart: Release) -> None:
    path = f"{POLICIES}/{chart.namespace}-{AUTOSCALER}"
    until(lambda: "typeChecking" in chart.api.get(path).get("status", {}))

    assert chart.api.get(path)["status"]["typeChecking"] == {}


def test_without_the_policy_the_account_can_run_any_image_until_an_upgrade_adds_it(
    chart: Release, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """RBAC alone, beside a release with the policy: docs/kubernetes.md says what that means."""
    await_policy(chart)
    with release(plane, tmp_path_factory.mktemp("without")) as other:
        other.install(EXAMPLES, NO_DISK, WITHOUT)
        assert not [
            one for one in plane.api.names(POLICIES) if one.startswith(f"{other.namespace}-")
        ]
        name = other.started_pods("intake", 2)[0]["metadata"]["name"]
        images = {
            other.path("deployments", DEPLOYMENT): add(f"{CONTAINER}/image", "other"),
            other.path("pods", name): add("/spec/containers/0/image", "other"),
        }

        def statuses() -> list[int]:
            with other.api.as_account(other.namespace, AUTOSCALER) as api:
                return [
                    api.send(
                        "PATCH", path, [change], content_type=JSON_PATCH, dryRun="All"
                    ).status_code
                    for path, change in images.items()
                ]

        assert statuses() == [200, 200]
        other.upgrade(EXAMPLES, NO_DISK)
        await_policy(other)
        assert statuses() == [403, 403]
