"""Goal: a real API server takes all that the chart makes, and Helm's life of a release holds on it.

The namespaces enforce the Pod Security Standard `restricted`. kwok ends the migration's pods.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.chart.cluster.custom_resources import crds, install_crds, remove_crd
from tests.chart.cluster.kube_api import CLASSES, POLICIES, POLICY_BINDINGS, KubeApi
from tests.chart.cluster.nodes import fleet, running_nodes
from tests.chart.cluster.releases import FULLNAME, INSTANCE, NO_DISK, Release
from tests.support.chart import APPLIED_APART, CHART, EXAMPLES, RENDERINGS, key_of
from tests.support.until import until, until_found

UNKNOWN_REGION: Final = {"region": "nowhere"}
"""No node is there, so that the migration never starts."""

OTHER_API: Final = {"roles": {"api": {"env": {"MILLRACE_LOG_LEVEL": "debug"}}}}
LEFT_OF_KUBERNETES: Final = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
OF_CLUSTER: Final = {
    "PriorityClass": CLASSES,
    "ValidatingAdmissionPolicy": POLICIES,
    "ValidatingAdmissionPolicyBinding": POLICY_BINDINGS,
}
WITHOUT_OWNER: Final = frozenset({"Event", "Lease", "PodMetrics"})


def overs(name: str) -> list[dict[str, Any]]:
    """Return the values over those of a rendering's examples."""
    return [] if name == "minimal" else [dict(NO_DISK)]


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_example_is_installed_and_each_pod_of_it_starts(name: str, chart: Release) -> None:
    zones = ["us-east-1a"] if name == "region_us" else []
    with running_nodes(chart.api, fleet(zones)):
        chart.install(RENDERINGS[name], *overs(name))
        check_release(chart)


def check_release(chart: Release) -> None:
    """Check that all of a release is there, after its migration, and that all of its pods work."""
    found = chart.deployments()
    started = {one: found[one].get("status", {}).get("readyReplicas", 0) for one in found}
    assert started == chart.replicas()
    assert sum(started.values()) >= 8
    (job,) = hooks(chart, "Job")
    assert job["last_run"]["phase"] == "Succeeded"
    assert not chart.api.items(chart.path("jobs"))  # hook-succeeded
    objects = [one for one in yaml.safe_load_all(chart.helm("get manifest").stdout) if one]
    kept = {key_of(one) for one in all_objects(chart.api, chart.namespace)}
    kept |= {(kind, name) for kind, path in OF_CLUSTER.items() for name in chart.api.names(path)}
    assert {key_of(one) for one in objects} <= kept


def hooks(chart: Release, kind: str) -> list[dict[str, Any]]:
    """Return the hooks of one kind with their last run."""
    status = yaml.safe_load(chart.helm("status", "--output", "json").stdout)
    return [one for one in status["hooks"] if one["kind"] == kind]


def all_objects(api: KubeApi, namespace: str) -> list[dict[str, Any]]:
    """Return the objects of all resources of a namespace, each once."""
    found = {}
    groups = [
        f"/apis/{one['preferredVersion']['groupVersion']}" for one in api.get("/apis")["groups"]
    ]
    for group in ("/api/v1", *groups):
        for resource in api.get(group)["resources"]:
            if resource["namespaced"] and "list" in resource["verbs"]:
                path = f"{group}/namespaces/{namespace}/{resource['name']}"
                for one in api.items(path):
                    found[one["metadata"]["uid"]] = {"kind": resource["kind"], **one}
    return list(found.values())


def test_an_upgrade_replaces_only_pods_of_what_has_changed(chart: Release) -> None:
    chart.install(["spot.yaml"], NO_DISK)
    before = templates(chart)
    chart.upgrade(["spot.yaml"], NO_DISK, OTHER_API)
    after = templates(chart)

    assert {name for name in after if after[name] != before[name]} == {"api"}
    done = chart.helm("rollback", "1", "--wait")
    assert done.returncode == 0, done.stderr
    assert templates(chart) == before


def templates(chart: Release) -> dict[str, str]:
    """Return the hash of the pods of each Deployment that has a current ReplicaSet."""
    found: dict[str, tuple[int, str]] = {}
    for one in chart.api.items(chart.path("replicasets"), INSTANCE):
        revision = int(one["metadata"]["annotations"]["deployment.kubernetes.io/revision"])
        name = one["metadata"]["ownerReferences"][0]["name"].removeprefix(f"{FULLNAME}-")
        found[name] = max(
            found.get(name, (0, "")), (revision, one["metadata"]["labels"]["pod-template-hash"])
        )
    return {name: template for name, (_, template) in found.items()}


def test_other_values_of_priority_classes_are_refused_before_anything_changes(
    chart: Release,
) -> None:
    """Kubernetes never changes the value of a class: an upgrade would stop in its middle."""
    higher = {"priorityClasses": {"onlineValue": 200_000}}
    chart.install(["minimal.yaml"])
    before = templates(chart)
    done = chart.helm("upgrade", CHART, *chart.chosen(["minimal.yaml"], higher, OTHER_API))
    assert done.returncode != 0
    assert "upgrade once with priorityClasses.create: false" in done.stderr
    assert templates(chart) == before

    chart.upgrade(["minimal.yaml"], {"priorityClasses": {"create": False}})
    chart.upgrade(["minimal.yaml"], higher)
    assert chart.api.get(f"{CLASSES}/{chart.namespace}-millrace-online")["value"] == 200_000


@pytest.mark.parametrize("name", ["spot", "keda"])
def test_a_removed_release_leaves_the_account_of_its_migration_alone(
    name: str, chart: Release
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "millrace-kafka-api"}}
    chart.api.create(chart.path("secrets"), secret)
    chart.install(RENDERINGS[name], NO_DISK)
    chart.upgrade(RENDERINGS[name], NO_DISK, OTHER_API)
    chart.started_pods("api", 2)

    done = chart.helm("uninstall", "--wait")
    assert done.returncode == 0, done.stderr
    kept = {("ServiceAccount", "millrace-migration"), ("Secret", "millrace-kafka-api")}
    until(lambda: remaining(chart) == kept | LEFT_OF_KUBERNETES)
    for path in OF_CLUSTER.values():
        assert not [one for one in chart.api.names(path) if one.startswith(f"{chart.namespace}-")]

    chart.install(RENDERINGS[name], NO_DISK)  # beside what has remained


def remaining(chart: Release) -> set[tuple[str, str]]:
    """Return what a namespace has, by kind and name, without records of Kubernetes itself."""
    found = all_objects(chart.api, chart.namespace)
    return {key_of(one) for one in found if one["kind"] not in WITHOUT_OWNER}


def test_a_migration_that_fails_stops_the_installation_before_all_else(chart: Release) -> None:
    chosen = chart.chosen(["minimal.yaml"], UNKNOWN_REGION)
    with ThreadPoolExecutor(1) as thread:
        failing = thread.submit(chart.helm, "install", CHART, *chosen, "--timeout", "110s")
        until(lambda: chart.api.find(chart.path("jobs", "millrace-migration")))
        (pod,) = until_found(lambda: chart.api.items(chart.path("pods")))
        assert pod["status"]["phase"] == "Pending"
        deadline = {"spec": {"activeDeadlineSeconds": 1}}  # that of the values is at least 60
        chart.api.patch(chart.path("jobs", "millrace-migration"), deadline)
        done = failing.result()

    assert done.returncode != 0
    assert "pre-install" in done.stderr
    assert not chart.deployments()
    accounts = chart.api.names(chart.path("serviceaccounts"))
    assert accounts == {"default", "millrace-migration"}
    until(lambda: not chart.api.items(chart.path("pods")))  # its time was over

    chart.upgrade(["minimal.yaml"])  # with nodes
    assert set(chart.replicas().values()) == {1}


def test_the_standard_refuses_weights_in_a_folder_of_the_node(chart: Release) -> None:
    """The namespace enforces `restricted`: no other pod of the chart is refused."""
    weights = {"weightCache": {"hostPath": "/weights"}}
    pools = {"embed.small": {**weights, "variants": [{"gpuType": "l4", "replicas": 1}]}}
    outside = {"autoscaler": {"enabled": False}, "pools": pools}
    done = chart.helm("install", CHART, *chart.chosen(["spot.yaml"], NO_DISK, outside))
    assert done.returncode == 0, done.stderr
    assert "would violate PodSecurity" in done.stderr

    def refusals() -> set[str]:
        return {
            one["involvedObject"]["name"].rpartition("-")[0]
            for one in chart.api.items(chart.path("events"))
            if one["reason"] == "FailedCreate" and "violates PodSecurity" in one["message"]
        }

    until(lambda: refusals() == {"millrace-embed-small-l4"})
    chart.started_pods("chat-8b-h100", 1)
    assert refusals() == {"millrace-embed-small-l4"}


def test_an_hpa_may_have_the_behavior_that_keda_is_told(chart: Release) -> None:
    """KEDA copies it into its HPA. It is not here, so that the test does."""
    chart.install(RENDERINGS["keda"], NO_DISK)
    scaled = chart.api.items(chart.path("scaledobjects"))
    assert len(scaled) == 6
    for one in scaled:
        spec = one["spec"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        target = {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]}
        hpa = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": one["metadata"]["name"]},
            "spec": {"scaleTargetRef": target, "maxReplicas": 5, "behavior": behavior},
        }
        path = chart.path("horizontalpodautoscalers")
        made = chart.api.call("POST", path, hpa, fieldValidation="Strict", dryRun="All")
        assert made["spec"]["behavior"] == behavior
        assert behavior["scaleDown"]["tolerance"] == "0"
        assert chart.api.find(chart.path("deployments", spec["scaleTargetRef"]["name"]))


def test_without_crds_monitoring_is_refused_and_all_else_installs(chart: Release) -> None:
    monitoring = [one for one in crds() if one["spec"]["group"] == "monitoring.coreos.com"]
    for crd in monitoring:
        remove_crd(chart.api, crd["metadata"]["name"])
    try:
        done = chart.helm("install", CHART, *chart.chosen(["spot.yaml"], NO_DISK))
        off = {"podMonitor": {"enabled": False}, "rules": {"enabled": False}}
        assert done.returncode != 0
        assert "PodMonitor" in done.stderr
        assert "ensure CRDs are installed first" in done.stderr
        assert not chart.deployments()

        chart.install(["spot.yaml"], NO_DISK, {"monitoring": off})
    finally:
        install_crds(chart.api, monitoring)


@pytest.mark.parametrize("name", APPLIED_APART)
def test_objects_beside_the_chart_obey_the_rules_of_their_crds(name: str, chart: Release) -> None:
    """The API server evaluates rules in CEL, which no schema has."""
    by_kind = {crd["spec"]["names"]["kind"]: crd for crd in crds()}
    for one in yaml.safe_load_all((EXAMPLES / name).read_text()):
        crd = by_kind[one["kind"]]["spec"]
        namespace = f"/namespaces/{chart.namespace}" * (crd["scope"] == "Namespaced")
        one["metadata"].pop("namespace", None)
        path = f"/apis/{one['apiVersion']}{namespace}/{crd['names']['plural']}"
        asked = {"fieldValidation": "Strict", "dryRun": "All"}
        answer = chart.api.send("POST", path, one, **asked)
        assert answer.status_code == 201, answer.text
        assert "warning" not in answer.headers
