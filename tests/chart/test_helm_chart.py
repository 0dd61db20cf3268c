"""Goal: Helm, kubeconform and promtool accept the chart; what they render is what is kept."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.chart.tools import rendering, run, template, values_file
from tests.support.chart import (
    APPLIED_APART,
    CHART,
    EXAMPLES,
    GOLDEN,
    RENDERINGS,
    SCHEMAS,
    VERSIONS,
    golden,
    kept_text,
    key_of,
    objects,
    schema_folder,
    spot_policies,
    values,
)

SPOT = EXAMPLES / "spot.yaml"


OUTSIDE: Final[dict[str, Any]] = {"autoscaler": {"enabled": False}}
"""Without an autoscaler, so that no policy counts."""


def pool(gpu_type: str) -> dict[str, Any]:
    """Return a pool with one variant."""
    return {
        "engine": {"kind": "simulated", "modelName": "m"},
        "variants": [{"gpuType": gpu_type}],
    }


@pytest.mark.parametrize("name", RENDERINGS)
def test_helm_lint_has_nothing_to_say(name: str) -> None:
    chosen = [part for file in RENDERINGS[name] for part in ("--values", str(EXAMPLES / file))]
    done = run("helm", "lint", "--strict", CHART, *chosen)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout


@pytest.mark.parametrize("name", RENDERINGS)
def test_a_rendering_is_the_one_that_is_kept(name: str) -> None:
    assert kept_text(name, rendering(name)) == (GOLDEN / f"{name}.yaml").read_text()


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schemas of kubernetes-validate with references that a program resolves by folder."""
    found = tmp_path_factory.mktemp("schemas")
    kinds = {key_of(one)[0].lower() for name in RENDERINGS for one in golden(name)}
    for version in VERSIONS:
        (found / version).mkdir()
        for path in schema_folder(version).glob("*.json"):
            if path.name == "_definitions.json" or path.name.partition("-")[0] in kinds:
                text = path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#')
                schema = json.loads(text)
                del schema["$id"]  # an address, at which a program would look for references
                (found / version / path.name).write_text(json.dumps(schema))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_kubeconform_accepts_every_object(version: str, schemas: Path) -> None:
    texts = [rendering(name) for name in RENDERINGS]
    texts += [(EXAMPLES / file).read_text() for file in APPLIED_APART]
    done = conform(schemas / version, "\n---\n".join(texts))
    summary = json.loads(done.stdout)["summary"]

    assert done.returncode == 0, done.stdout
    assert summary["valid"] > 200
    assert summary["invalid"] == summary["errors"] == summary["skipped"] == 0


def conform(of_kubernetes: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run kubeconform with these schemas and those of the repository alone."""
    places = [
        f"{folder}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
        for folder in (of_kubernetes, SCHEMAS)
    ]
    chosen = [part for place in places for part in ("-schema-location", place)]
    return run("kubeconform", "-strict", "-summary", "-output", "json", *chosen, "-", stdin=text)


@pytest.mark.parametrize(
    "wrong",
    [
        "{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {name: a}, spec: {max: 1}}",
        "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {portz: []}}",
        "{apiVersion: example.com/v1, kind: Unknown, metadata: {name: a}}",
    ],
)
def test_kubeconform_refuses_what_is_wrong(wrong: str, schemas: Path) -> None:
    assert conform(schemas / VERSIONS[-1], wrong).returncode != 0


def test_promtool_accepts_the_alerts_and_they_fire_in_time(tmp_path: Path) -> None:
    for name in ("alerts.yaml", "alerts_test.yaml"):
        shutil.copy(CHART / name, tmp_path)
    checked = run(
        "promtool", "check", "rules", "--lint=all", "--lint-fatal", tmp_path / "alerts.yaml"
    )
    tested = run("promtool", "test", "rules", tmp_path / "alerts_test.yaml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_rule_of_a_release_holds_the_alerts() -> None:
    rules = [
        one for one in yaml.safe_load_all(rendering("spot")) if one["kind"] == "PrometheusRule"
    ]

    assert [one["spec"] for one in rules] == [yaml.safe_load((CHART / "alerts.yaml").read_text())]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"replicas": 3}, "additional properties 'replicas' not allowed"),
        ({"roles": {"api": {"env": {"MILLRACE_KAFKA_SASL_PASSWORD": "x"}}}}, "PASSWORD"),
        (
            {
                **OUTSIDE,
                "pools": {
                    "x": {
                        **values("spot.yaml")["pools"]["chat-8b"],
                        "variants": [{"gpuType": "b200"}],
                    }
                },
            },
            "gpuTypes has no b200",
        ),
        ({"trustedKeys": {"configMap": ""}}, "vllm needs trustedKeys.configMap"),
        (
            {**OUTSIDE, "pools": {"embed-small": values("spot.yaml")["pools"]["embed.small"]}},
            "has the name millrace-embed-small-l4",
        ),
        ({"autoscaler": {"policies": ""}}, "the text of a scaling policy file"),
        (
            {
                **OUTSIDE,
                "fullnameOverride": "a" * 40,
                "pools": {"p" * 30: values("spot.yaml")["pools"]["chat-8b"]},
            },
            "more than 63 characters",
        ),
        (
            {**OUTSIDE, "gpuTypes": {"bulk": {}}, "pools": {"batcher": pool("bulk")}},
            "a role has the name millrace-batcher-bulk",
        ),
        (
            {
                "gpuTypes": {"bulk": {}, "none": {}},
                **OUTSIDE,
                "pools": {
                    "a.b": {**pool("bulk"), "egress": [{"ports": [443]}]},
                    "a-b": {**pool("none"), "egress": [{"ports": [443]}]},
                },
            },
            "has this name but for . and _",
        ),
        ({"fullnameOverride": "1a"}, "fullnameOverride"),
        (
            {"labels": {"app.kubernetes.io/name": "x"}},
            "invalid propertyName 'app.kubernetes.io/name'",
        ),
        ({"kafka": {"replicationFactor": 1}}, "minInsyncReplicas is above replicationFactor"),
        ({"priorityClasses": {"bulkValue": 100_000}}, "onlineValue is not above bulkValue"),
        (
            {"roles": {"api": {"env": {"MILLRACE_KAFKA_GROUP_PROTOCOL": "consumer"}}}},
            "roles.api: MILLRACE_KAFKA_GROUP_PROTOCOL is set twice",
        ),
        (
            {"pools": {"chat-8b": {"env": {"MILLRACE_GPU_POOL": "x"}}}},
            "pools.chat-8b: MILLRACE_GPU_POOL is set twice",
        ),
    ],
)
def test_helm_refuses_values(over: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = values_file(tmp_path, over)
    done = template([SPOT, file])

    assert done.returncode != 0
    assert message in done.stderr


def test_names_that_look_like_numbers_stay_text(schemas: Path) -> None:
    """YAML reads 123, true, null and 1.5 without quotes as something else than text."""
    file = values_file(
        schemas,
        {
            "fullnameOverride": "null",
            "nameOverride": "123",
            "region": "1",
            "labels": {"team": "true"},
            "annotations": {"note": "1"},
            "image": {
                "pullSecrets": ["1.5"],
                "controlPlane": {"repository": "12", "tag": "30"},
            },
            "secrets": {
                "kafka": {"api": {"name": "1", "usernameKey": "2", "passwordKey": "null"}},
                "database": {"api": {"name": "true", "key": "0x1"}},
                "objectStore": {"name": "8", "accessKeyKey": "9", "secretKeyKey": "10"},
                "webhooks": {"name": "12", "key": "1"},
            },
            "trustedKeys": {"configMap": "77", "key": "1"},
            "kafka": {"caSecret": {"name": "5", "key": "6"}},
            "monitoring": {"podMonitor": {"labels": {"team": "1"}}},
            "networkPolicies": {"prometheusNamespace": "9", "dns": {"namespace": "8"}},
            "pools": {
                "chat-8b": {
                    "queue": "3",
                    "runtimeClassName": "4",
                    "weightCache": {"storageClass": "1"},
                    "shmSize": "1",
                }
            },
            **spot_policies('release = "millrace"', 'release = "null"'),
        },
    )
    done = run(
        "helm", "template", "1", CHART, "--namespace", "12", "--values", SPOT, "--values", file
    )
    assert done.returncode == 0, done.stderr
    checked = conform(schemas / VERSIONS[-1], done.stdout)

    assert checked.returncode == 0, checked.stdout
    monitor = next(one for one in objects(done.stdout) if one["kind"] == "PodMonitor")
    assert monitor["metadata"]["labels"]["team"] == "1"  # its own, and once


def test_values_that_may_be_removed_leave_nothing_behind(schemas: Path) -> None:
    file = values_file(
        schemas,
        {
            "roles": {"api": {"resources": None, "preStopSleepS": None}},
            "migration": {"resources": None},
            "secrets": {"objectStore": None},
            "serviceAccounts": {"annotations": None},
            "api": {"service": {"annotations": None}},
            "monitoring": {"podMonitor": {"labels": None}, "rules": {"labels": None}},
            "networkPolicies": {
                "dns": {"podLabels": None, "cidrs": None},
                "kafka": {"to": None},
            },
        },
    )
    done = template([SPOT, file])
    assert done.returncode == 0, done.stderr
    checked = conform(schemas / VERSIONS[-1], done.stdout)

    assert checked.returncode == 0, checked.stdout
    assert "nil>" not in done.stdout


def test_a_grace_of_zero_is_zero(tmp_path: Path) -> None:
    file = values_file(tmp_path, {"pools": {"chat-8b": {"shutdownGraceS": 0}}})
    done = template([SPOT, file], "--show-only", "templates/pools.yaml")
    found = {key_of(one): one for one in objects(done.stdout)}
    pod = found["Deployment", "millrace-chat-8b-l4"]["spec"]["template"]["spec"]

    env = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
    assert env["MILLRACE_GPU_SHUTDOWN_GRACE_S"] == "0"
    assert pod["terminationGracePeriodSeconds"] == 20


def test_every_object_has_the_labels_and_annotations_of_the_values(tmp_path: Path) -> None:
    over = {
        "labels": {"team": "ml"},
        "annotations": {"owner": "ml"},
        "api": {"service": {"annotations": {"lb": "internal"}}},
        "pools": {"chat-8b": {"egress": [{"ports": [443]}]}},
    }
    file = values_file(tmp_path, over)
    done = template([SPOT, EXAMPLES / "keda.yaml", file])
    assert done.returncode == 0, done.stderr
    for one in objects(done.stdout):
        assert one["metadata"]["labels"]["team"] == "ml", key_of(one)
        assert one["metadata"]["annotations"]["owner"] == "ml", key_of(one)
        if one["kind"] == "Job":
            assert one["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        if key_of(one) == ("Service", "millrace-api"):
            assert one["metadata"]["annotations"]["lb"] == "internal"


@pytest.mark.parametrize(
    ("over", "policies"),
    [
        ({}, 1),
        ({"autoscaler": {"admissionPolicy": {"create": False}}}, 0),
        # Nothing is scaled by Kubernetes, so that the account may change nothing.
        ({"autoscaler": {"enabled": False}}, 0),
    ],
)
def test_the_policy_of_admission_is_there_unless_it_is_not_wanted(
    over: dict[str, Any], policies: int, tmp_path: Path
) -> None:
    done = template([SPOT, values_file(tmp_path, over)])
    assert done.returncode == 0, done.stderr
    kinds = [one["kind"] for one in objects(done.stdout)]

    assert kinds.count("ValidatingAdmissionPolicy") == policies
    assert kinds.count("ValidatingAdmissionPolicyBinding") == policies


def test_an_actuator_of_kind_webhook_has_its_secret_and_its_way_out(tmp_path: Path) -> None:
    out = {"to": [{"ipBlock": {"cidr": "10.9.0.0/24"}}], "ports": [8443]}
    file = values_file(tmp_path, {"autoscaler": {"secret": "scaler", "egress": [out]}})
    done = template([SPOT, file])
    assert done.returncode == 0, done.stderr
    found = {key_of(one): one for one in objects(done.stdout)}
    pod = found["Deployment", "millrace-autoscaler"]["spec"]["template"]["spec"]

    assert {"name": "actuators", "secret": {"secretName": "scaler"}} in pod["volumes"]
    mounts = pod["containers"][0]["volumeMounts"]
    assert {"name": "actuators", "mountPath": "/etc/millrace/actuators", "readOnly": True} in mounts
    rules = found["NetworkPolicy", "millrace-autoscaler"]["spec"]["egress"]
    assert rules[-1] == {"to": out["to"], "ports": [{"port": 8443, "protocol": "TCP"}]}


def test_a_value_is_never_read_as_yaml_or_as_a_template(tmp_path: Path) -> None:
    """Text that the schema lets through is text in the object."""
    hostile = 'x"\n- {name: EVIL, value: y}\n{{ .Release.Name }}'
    file = values_file(tmp_path, {"roles": {"api": {"env": {"MILLRACE_API_PUBLIC_URL": hostile}}}})
    done = template([SPOT, file], "--show-only", "templates/roles.yaml")

    assert done.returncode == 0, done.stderr
    (api,) = [
        one
        for one in yaml.safe_load_all(done.stdout)
        if one["metadata"]["name"] == "millrace-api" and one["kind"] == "Deployment"
    ]
    (container,) = api["spec"]["template"]["spec"]["containers"]
    found = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert found["MILLRACE_API_PUBLIC_URL"] == hostile
    assert "EVIL" not in found
