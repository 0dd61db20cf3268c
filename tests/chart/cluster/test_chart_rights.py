"""Goal: RBAC lets each ServiceAccount of the chart do what it needs, and nothing else.

What an account may do is what the API server itself answers for its token. What RBAC cannot limit
is in test_admission_policy.py.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.chart.cluster.control_plane import ControlPlane
from tests.chart.cluster.kube_api import CLASSES, NODES, KubeApi, path_of
from tests.chart.cluster.releases import NO_DISK, Release, release
from tests.support.until import until

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
AUTOSCALER: Final = "millrace-autoscaler"
SCALED: Final = [
    "millrace-api",
    "millrace-batcher-bulk",
    *(f"millrace-chat-8b-{kind}" for kind in ("h100", "h100-spot", "l4", "l4-spot")),
    *(f"millrace-embed-small-{kind}" for kind in ("l4", "l4-spot")),
    "millrace-results-writer",
]
OTHERS: Final = (
    *("api", "batcher-bulk", "batcher-interactive", "finaliser", "gpu-consumer", "intake"),
    *("migration", "results-writer", "webhooks"),
)


@pytest.fixture(scope="module")
def chart(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release whose policies scale two pools and three roles."""
    with release(plane, tmp_path_factory.mktemp("chart")) as found:
        found.install(["spot.yaml", "warm.yaml"], NO_DISK)
        yield found


@pytest.fixture
def autoscaler(chart: Release) -> Iterator[KubeApi]:
    """A client with the token of the autoscaler."""
    with chart.api.as_account(chart.namespace, AUTOSCALER) as found:
        yield found


def rules(api: KubeApi, namespace: str) -> dict[str, dict[str, Any]]:
    """Return what the account may do in a namespace, each rule by its text."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    status = api.create(REVIEWS, review)["status"]
    assert status["incomplete"] is False
    found = [*status["resourceRules"], *status["nonResourceRules"]]
    return {json.dumps(rule, sort_keys=True): rule for rule in found}


def given(chart: Release, account: str, namespace: str) -> list[dict[str, Any]]:
    """Return the rules of an account that are not those of each account of the cluster."""
    with chart.api.as_account("default", "default") as anyone:
        common = rules(anyone, namespace)
    with chart.api.as_account(chart.namespace, account) as api:
        found = rules(api, namespace)
    assert common.keys() <= found.keys()
    return [rule for text, rule in found.items() if text not in common]


def test_the_autoscaler_may_do_what_its_role_says_in_its_namespace_alone(chart: Release) -> None:
    until(lambda: given(chart, AUTOSCALER, chart.namespace))
    found = given(chart, AUTOSCALER, chart.namespace)

    allowed = {
        (verb, resource): sorted(rule.get("resourceNames", []))
        for rule in found
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        ("list", "deployments"): [],
        ("patch", "deployments"): SCALED,
        ("update", "deployments/scale"): SCALED,
        ("list", "pods"): [],
        ("patch", "pods"): [],
        ("list", "horizontalpodautoscalers"): [],
        ("list", "scaledobjects"): [],
    }
    assert given(chart, AUTOSCALER, "default") == []


@pytest.mark.parametrize("role", OTHERS)
def test_no_other_account_may_do_what_any_account_may_not(role: str, chart: Release) -> None:
    account = f"millrace-{role}"

    assert given(chart, account, chart.namespace) == []
    assert given(chart, account, "default") == []
    found = chart.api.get(chart.path("serviceaccounts", account))
    assert found["automountServiceAccountToken"] is False


def test_no_account_of_the_chart_is_left_out(chart: Release) -> None:
    accounts = chart.api.names(chart.path("serviceaccounts")) - {"default"}

    assert accounts == {AUTOSCALER, *(f"millrace-{role}" for role in OTHERS)}


def test_only_the_pods_of_the_autoscaler_have_a_token(chart: Release) -> None:
    chart.started_pods("autoscaler", 2)
    with_token = set()
    for pod in chart.api.items(chart.path("pods")):
        sources = [
            source
            for volume in pod["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
        ]
        if any("serviceAccountToken" in source for source in sources):
            with_token.add(pod["spec"]["serviceAccountName"])

    assert with_token == {AUTOSCALER}


POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "own"},
    "spec": {"containers": [{"name": "own", "image": "own"}]},
}
ANNOTATED: Final = {"metadata": {"annotations": {"a": "b"}}}
EVICTION: Final = {"apiVersion": "policy/v1", "kind": "Eviction"}


@pytest.mark.parametrize(
    ("method", "resource", "name", "subresource", "body"),
    [
        ("GET", "secrets", "", "", None),
        ("GET", "secrets", "millrace-kafka-api", "", None),
        ("GET", "configmaps", "", "", None),
        ("POST", "pods", "", "", POD),
        ("DELETE", "pods", "POD", "", None),
        ("POST", "pods", "POD", "eviction", EVICTION),
        ("POST", "pods", "POD", "exec", None),
        ("GET", "pods", "POD", "log", None),
        ("PATCH", "pods", "POD", "ephemeralcontainers", ANNOTATED),
        ("PATCH", "pods", "POD", "status", ANNOTATED),
        ("POST", "deployments", "", "", {}),
        ("DELETE", "deployments", "millrace-api", "", None),
        ("PUT", "deployments", "millrace-api", "", {}),
        ("PATCH", "deployments", "millrace-intake", "", ANNOTATED),
        ("PUT", "deployments", "millrace-intake", "scale", {}),
        ("PATCH", "deployments", "millrace-autoscaler", "", ANNOTATED),
        ("PUT", "deployments", "millrace-finaliser", "scale", {}),
        ("GET", "replicasets", "", "", None),
        ("POST", "serviceaccounts", "millrace-api", "token", {}),
        ("GET", "roles", "", "", None),
        ("PATCH", "roles", AUTOSCALER, "", {"rules": []}),
        ("POST", "rolebindings", "", "", {}),
        ("DELETE", "networkpolicies", "", "", None),
        ("DELETE", "poddisruptionbudgets", "", "", None),
    ],
)
def test_the_autoscaler_is_refused_all_else(
    method: str,
    resource: str,
    name: str,
    subresource: str,
    body: dict[str, Any] | None,
    chart: Release,
    autoscaler: KubeApi,
) -> None:
    if name == "POD":
        name = chart.started_pods("api", 2)[0]["metadata"]["name"]
    path = chart.path(resource, name, subresource)

    answer = autoscaler.send(method, path, body)
    assert answer.status_code == 403, answer.text
    assert f"{chart.namespace}:{AUTOSCALER}" in answer.json()["message"]


@pytest.mark.parametrize(
    "path",
    [
        path_of("default", "deployments"),
        path_of("default", "pods"),
        path_of("kube-system", "secrets"),
        "/apis/apps/v1/deployments",
        CLASSES,
        NODES,
        "/api/v1/namespaces",
    ],
)
def test_the_autoscaler_sees_no_other_namespace_and_nothing_of_the_cluster(
    path: str, autoscaler: KubeApi
) -> None:
    assert autoscaler.status("GET", path) == 403


@pytest.mark.parametrize(
    "change",
    [
        {"serviceAccountName": AUTOSCALER},
        {"priority": 1_000_000},
        {"containers": [{"name": "intake", "command": ["sh"]}]},
        {"volumes": [{"name": "tmp", "hostPath": {"path": "/"}}]},
    ],
)
def test_most_of_a_pod_cannot_be_changed_by_a_patch(
    change: dict[str, Any], chart: Release, autoscaler: KubeApi
) -> None:
    """Kubernetes limits the patches of pods, whoever sends them."""
    pod = chart.started_pods("intake", 2)[0]
    path = chart.path("pods", pod["metadata"]["name"])

    for api in (autoscaler, chart.api):
        answer = api.send("PATCH", path, {"spec": merged_lists(pod["spec"], change)})
        assert answer.status_code in {403, 422}, answer.text


def merged_lists(spec: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return a change whose lists have all items of the spec, those of the same name changed."""
    found = dict(change)
    for key, value in change.items():
        if isinstance(value, list):
            changes = {one["name"]: one for one in value}
            found[key] = [{**one, **changes.get(one["name"], {})} for one in spec[key]]
    return found
