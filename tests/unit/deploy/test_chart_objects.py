"""Goal: what the chart installs is valid, does only what its role needs and stops in time."""

import json
import math
import re
from typing import Any

import pytest

from autoscaler.policies.policy_reader import read_policies
from cli.stack.processes.inherited_env import OF_ROLE
from cli.stack.processes.role_children import MODULES
from tests.support.chart import (
    CHART,
    RENDERINGS,
    ROOT,
    all_values,
    containers,
    golden,
    values,
)
from tests.unit.docs.settings_classes import settings_classes

SECRET = re.compile(r"PASSWORD|SECRET|USERNAME|ACCESS_KEY|DATABASE_URL")
STOP_S = {"api": 14, "intake": 20, "gpu-consumer": 18, "finaliser": 20, "webhooks": 5}
"""How long a stop may take by default, docs/operations.md."""


def of_kind(name: str, kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in golden(name) if one["kind"] == kind}


def workloads(name: str) -> list[dict[str, Any]]:
    return [*of_kind(name, "Deployment").values(), *of_kind(name, "Job").values()]


def role_of(one: dict[str, Any]) -> str:
    component: str = one["metadata"]["labels"]["app.kubernetes.io/component"]
    return "batcher" if component.startswith("batcher-") else component


def env_of(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in container["env"]}


def test_every_role_is_installed_and_each_variant_of_a_pool() -> None:
    found = of_kind("spot", "Deployment")

    assert {role_of(one) for one in found.values()} == set(MODULES)
    assert {n for n, one in found.items() if role_of(one) == "gpu-consumer"} == {
        "millrace-chat-8b-h100",
        "millrace-chat-8b-h100-spot",
        "millrace-chat-8b-l4",
        "millrace-chat-8b-l4-spot",
        "millrace-embed-small-l4",
        "millrace-embed-small-l4-spot",
    }
    assert not any(
        role_of(one) == "autoscaler" for one in of_kind("minimal", "Deployment").values()
    )


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_variable_is_a_setting_of_its_role(name: str) -> None:
    known = {c.env_prefix + field.upper() for c in settings_classes() for field in c.model_fields}
    for one in of_kind(name, "Deployment").values():
        (container,) = containers(one)
        named = {v for v in env_of(container) if v.startswith("MILLRACE_")}
        assert named - known == set()
        patterns = [p.replace("*", ".*") for p in OF_ROLE[role_of(one)]]
        assert [v for v in named if not any(re.fullmatch(p, v) for p in patterns)] == []


@pytest.mark.parametrize("name", RENDERINGS)
def test_the_settings_of_a_role_are_valid(name: str) -> None:
    examples = {
        "MILLRACE_DATABASE_URL": "postgresql://u:p@h/d",
        "MILLRACE_WEBHOOKS_SECRET_KEY": None,
    }
    for one in of_kind(name, "Deployment").values():
        (container,) = containers(one)
        env = {
            n: v.get("value", examples.get(n, "text"))
            for n, v in env_of(container).items()
            if n != "MILLRACE_KAFKA_SSL_CA_LOCATION"
        }
        given = {n: v for n, v in env.items() if v is not None}
        for cls in settings_classes():
            if cls.env_prefix != "MILLRACE_WEBHOOKS_" and any(
                n.startswith(cls.env_prefix) for n in given
            ):
                cls.from_env(given)


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_secret_is_a_reference_and_a_role_has_its_own(name: str) -> None:
    names: dict[str, set[str]] = {}
    for one in workloads(name):
        for container in containers(one):
            for variable in container["env"]:
                if SECRET.search(variable["name"]):
                    reference = variable["valueFrom"]["secretKeyRef"]
                    names.setdefault(role_of(one), set()).add(reference["name"])
    kept = all_values(*map(values, RENDERINGS[name]))["secrets"]
    shared = {kept["objectStore"]["name"], kept["webhooks"]["name"]}
    own = [found - shared for found in names.values()]
    assert sum(map(len, own)) == len(set().union(*own))
    assert not any(one["kind"] == "Secret" for one in golden(name))
    operator = {"millrace-database-operator", "millrace-kafka-operator"}
    assert not any(found & operator for role, found in names.items() if role != "migration")


@pytest.mark.parametrize("name", RENDERINGS)
def test_no_pod_has_rights_that_it_does_not_need(name: str) -> None:
    for one in workloads(name):
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        calls_kubernetes = role_of(one) == "autoscaler" and name != "keda"
        assert pod["automountServiceAccountToken"] is calls_kubernetes
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for container in containers(one):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["allowPrivilegeEscalation"] is False
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize("name", RENDERINGS)
def test_kubernetes_adds_no_variables_that_a_role_refuses(name: str) -> None:
    """A link to the Service `millrace-api` would set `MILLRACE_API_PORT` to a URL."""
    for one in workloads(name):
        assert one["spec"]["template"]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize(
    ("name", "roles"),
    [("spot", []), ("warm", ["millrace-api", "millrace-batcher-bulk", "millrace-results-writer"])],
)
def test_only_the_autoscaler_has_a_role_for_what_it_scales(name: str, roles: list[str]) -> None:
    """The calls are those of `autoscaler/actuators/kubernetes`; `observe` changes nothing."""
    (role,) = of_kind(name, "Role").values()
    (binding,) = of_kind(name, "RoleBinding").values()
    found = of_kind(name, "Deployment")
    scaled = sorted(roles + [n for n, d in found.items() if role_of(d) == "gpu-consumer"])

    assert [s["name"] for s in binding["subjects"]] == ["millrace-autoscaler"]
    assert [
        (*r["resources"], sorted(r.get("resourceNames", [])), r["verbs"]) for r in role["rules"]
    ] == [
        ("deployments", [], ["list"]),
        ("deployments", scaled, ["patch"]),
        ("deployments/scale", scaled, ["update"]),
        ("pods", [], ["list", "patch"]),
        ("horizontalpodautoscalers", [], ["list"]),
        ("scaledobjects", [], ["list"]),
    ]
    assert set(scaled) <= found.keys()
    assert of_kind(name, "ClusterRole") == of_kind("minimal", "Role") == {}


def test_an_autoscaler_that_calls_no_api_server_has_no_token_and_no_way_to_it() -> None:
    account = of_kind("keda", "ServiceAccount")["millrace-autoscaler"]
    policy = of_kind("keda", "NetworkPolicy")["millrace-autoscaler"]

    assert account["automountServiceAccountToken"] is False
    assert [rule["ports"][0]["port"] for rule in policy["spec"]["egress"]] == [9093]


def test_all_replicas_of_a_warm_pool_start_in_standby_and_no_others() -> None:
    found = of_kind("warm", "Deployment")
    standby = {
        n
        for n, d in found.items()
        for c in containers(d)
        if env_of(c).get("MILLRACE_GPU_STANDBY", {}).get("value") == "true"
    }
    text = of_kind("warm", "ConfigMap")["millrace-policies"]["data"]["scaling.toml"]
    policies = read_policies(text.encode(), "scaling.toml")

    assert policies.policy_of("chat-8b").warm_replicas == 2
    assert standby == {n for n in found if n.startswith("millrace-chat-8b-")}
    assert len(standby) == 4


@pytest.mark.parametrize("name", RENDERINGS)
def test_the_grace_of_a_pod_is_longer_than_its_stop(name: str) -> None:
    given = all_values(*map(values, RENDERINGS[name]))
    for one in of_kind(name, "Deployment").values():
        pod = one["spec"]["template"]["spec"]
        (container,) = containers(one)
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        stop = [v for n, v in env_of(container).items() if re.search(r"STOP_|SHUTDOWN_GRACE", n)]
        role = role_of(one)
        rest = {"api": 6, "gpu-consumer": 10}.get(role, 0)
        longest = max(float(stop[0]["value"]) + rest if stop else 0, STOP_S.get(role, 10))
        assert pod["terminationGracePeriodSeconds"] >= math.ceil(longest) + sleep + 10, one
    assert given["roles"]["api"]["preStopSleepS"] > 0


@pytest.mark.parametrize("name", RENDERINGS)
def test_a_start_is_not_cut_before_it_may_be_ready(name: str) -> None:
    for one in of_kind(name, "Deployment").values():
        (container,) = containers(one)
        startup = container["startupProbe"]
        span = startup["periodSeconds"] * startup["failureThreshold"]
        assert (
            startup["httpGet"]["path"]
            == container["readinessProbe"]["httpGet"]["path"]
            == "/readyz"
        )
        assert span >= (1800 if role_of(one) == "gpu-consumer" else 180)
        ports = {port["name"] for port in container["ports"]}
        assert startup["httpGet"]["port"] in ports
        if role_of(one) == "gpu-consumer":
            assert one["spec"]["progressDeadlineSeconds"] > span


@pytest.mark.parametrize("name", RENDERINGS)
def test_a_role_reaches_what_it_uses_and_nothing_else(name: str) -> None:
    policies = of_kind(name, "NetworkPolicy")
    net = all_values(*map(values, RENDERINGS[name]))["networkPolicies"]
    default = policies.pop("millrace-default")
    assert default["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in default["spec"]
    assert [rule["ports"][0]["port"] for rule in default["spec"]["egress"]] == [53]
    for one in workloads(name):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert default["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        (own,) = [
            p
            for p in policies.values()
            if p["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        ]
        variables = {v for c in containers(one) for v in env_of(c)}
        expected = [
            [{"port": port, "protocol": "TCP"} for port in net[peer]["ports"]]
            for prefix, peer in (
                ("KAFKA", "kafka"),
                ("DATABASE", "postgres"),
                ("S3", "objectStore"),
            )
            if any(v.startswith(f"MILLRACE_{prefix}_") for v in variables)
        ]
        further = [rule["ports"] for rule in own["spec"]["egress"]]
        assert further[: len(expected)] == expected
        role = role_of(one)
        elsewhere = {"webhooks"} if name == "keda" else {"autoscaler", "webhooks"}
        assert (len(further) > len(expected)) is (role in elsewhere), role
        sources = [rule["ports"][0]["port"] for rule in own["spec"].get("ingress", [])]
        assert set(sources) <= {
            9100,
            8000 if role == "api" else 9100,
            9095 if role == "autoscaler" else 9100,
        }


def test_webhooks_reach_no_private_address() -> None:
    rule = of_kind("minimal", "NetworkPolicy")["millrace-webhooks"]["spec"]["egress"][-1]

    for peer in rule["to"]:
        assert {"10.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16"} <= set(
            peer["ipBlock"]["except"]
        ) or {
            "fc00::/7",
            "fe80::/10",
        } <= set(peer["ipBlock"]["except"])


@pytest.mark.parametrize("name", RENDERINGS)
def test_pods_are_not_replaced_because_a_version_changed_and_nothing_else(name: str) -> None:
    """A model takes minutes to load: the labels of a pod have no version of the chart."""
    for one in workloads(name):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & labels.keys()
        selector = one["spec"].get("selector", {}).get("matchLabels", {})
        assert selector.items() <= labels.items()


def test_online_work_comes_before_bulk_work() -> None:
    classes = of_kind("spot", "PriorityClass")
    found = of_kind("spot", "Deployment")

    assert classes["millrace-millrace-online"]["value"] > classes["millrace-millrace-bulk"]["value"]
    assert classes["millrace-millrace-bulk"]["preemptionPolicy"] == "Never"
    named = {n: d["spec"]["template"]["spec"]["priorityClassName"] for n, d in found.items()}
    assert named["millrace-api"] == named["millrace-chat-8b-h100"] == "millrace-millrace-online"
    assert named["millrace-intake"] == named["millrace-embed-small-l4"] == "millrace-millrace-bulk"


@pytest.mark.parametrize("name", RENDERINGS)
def test_pods_spread_over_zones_and_a_drain_of_nodes_takes_few_at_once(name: str) -> None:
    budgets = of_kind(name, "PodDisruptionBudget")
    for own, one in of_kind(name, "Deployment").items():
        constraint = one["spec"]["template"]["spec"]["topologySpreadConstraints"][0]
        selector = one["spec"]["selector"]
        assert constraint["topologyKey"] == "topology.kubernetes.io/zone"
        assert constraint["labelSelector"] == selector == budgets[own]["spec"]["selector"]
    selectors = [json.dumps(d["spec"]["selector"]) for d in of_kind(name, "Deployment").values()]
    assert len(set(selectors)) == len(selectors)


def test_a_replica_has_its_gpus_its_place_and_its_folders() -> None:
    pod = of_kind("spot", "Deployment")["millrace-chat-8b-h100-spot"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"] == {
        "millrace.dev/gpu-type": "h100",
        "karpenter.sh/capacity-type": "spot",
    }
    assert {t["key"] for t in pod["tolerations"]} == {"nvidia.com/gpu", "millrace.dev/spot"}
    env = env_of(container)
    assert env["MILLRACE_GPU_SPOT"]["value"] == "true"
    assert env["MILLRACE_HOST_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/dev/shm", "/var/lib/millrace/weights", "/var/lib/millrace/members"} <= mounted
    assert "args" not in container  # the image's entry point is the role


def test_the_migration_runs_before_the_roles_in_order() -> None:
    (job,) = of_kind("spot", "Job").values()
    steps = [(c["name"], c.get("command") or c.get("args")) for c in containers(job)]

    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert [name for name, _ in steps] == ["migrate", "grants", "topics", "acls"]
    assert steps[0][1] == ["python", "-P", "-m", "migrations"]
    assert steps[2][1] == ["topics", "create", "--pool", "chat-8b", "--pool", "embed.small"]
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    hook = of_kind("spot", "ServiceAccount")[account]["metadata"]["annotations"]
    assert int(hook["helm.sh/hook-weight"]) < 0


def test_an_hpa_adds_no_dead_band_to_what_the_autoscaler_decides() -> None:
    found = of_kind("keda", "ScaledObject")
    pools = [n for n, d in of_kind("keda", "Deployment").items() if role_of(d) == "gpu-consumer"]

    assert sorted(found) == sorted(pools)
    for name, one in found.items():
        assert one["spec"]["scaleTargetRef"]["name"] == name
        behavior = one["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        (trigger,) = one["spec"]["triggers"]
        assert one["spec"]["maxReplicaCount"] == 8  # replicas_max of the policy
        # The scaler would count replicas of the zone "" alone.
        assert trigger["metadata"].get("zone") != ""
        for direction in ("scaleUp", "scaleDown"):
            assert behavior[direction]["tolerance"] == "0"
            assert behavior[direction]["stabilizationWindowSeconds"] == 0
    assert of_kind("spot", "ScaledObject") == {}


def test_policies_are_a_folder_that_the_autoscaler_reads_again() -> None:
    pod = of_kind("spot", "Deployment")["millrace-autoscaler"]["spec"]["template"]["spec"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "policies"]
    text = of_kind("spot", "ConfigMap")["millrace-policies"]["data"]["scaling.toml"]

    assert mount == {"name": "policies", "mountPath": "/etc/millrace/policies", "readOnly": True}
    assert text.strip() == values("spot.yaml")["autoscaler"]["policies"].strip()
    policies = read_policies(text.encode(), "scaling.toml")
    for pool in ("chat-8b", "embed.small"):
        assert set(policies.policy_of(pool).gpu_types) <= values("spot.yaml")["gpuTypes"].keys()


@pytest.mark.parametrize("region", ["eu", "us"])
def test_a_region_keeps_what_it_has(region: str) -> None:
    place = {"eu": "eu-central-1", "us": "us-east-1"}
    (other,) = {"eu", "us"} - {region}
    for one in workloads(f"region_{region}"):
        pod = one["spec"]["template"]["spec"]
        assert pod["nodeSelector"]["topology.kubernetes.io/region"] == place[region]
        for container in containers(one):
            assert place[other] not in json.dumps(container["env"])
            assert f"millrace-{other}" not in json.dumps(container["env"])


def test_alerts_are_of_metrics_that_exist() -> None:
    listed = set(re.findall(r"^\| `(millrace_\w+)`", (ROOT / "docs/metrics.md").read_text(), re.M))
    alerts = (CHART / "alerts.yaml").read_text()
    expressions = re.findall(r"^ +expr: (.*)$", alerts, re.M)
    named = {
        name for text in expressions for name in re.findall(r"\bmillrace_\w+(?=[\[{) ])", text)
    }

    assert len(expressions) > 10
    assert named - listed - {"millrace_dev_pool"} == set()
    assert alerts.count("- alert:") == len(expressions) == alerts.count("summary:")
