"""Goal: Helm, kubeconform and promtool accept the chart; what they render is what is kept."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.chart.tools import rendering, run, template
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
    schema_folder,
    values,
)

SPOT = EXAMPLES / "spot.yaml"


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
                "pools": {
                    "x": {
                        **values("spot.yaml")["pools"]["chat-8b"],
                        "variants": [{"gpuType": "b200"}],
                    }
                }
            },
            "gpuTypes has no b200",
        ),
        ({"trustedKeys": {"configMap": ""}}, "vllm needs trustedKeys.configMap"),
        (
            {"pools": {"embed-small": values("spot.yaml")["pools"]["embed.small"]}},
            "has the name millrace-embed-small-l4",
        ),
        ({"autoscaler": {"policies": ""}}, "the text of a scaling policy file"),
        (
            {
                "fullnameOverride": "a" * 40,
                "pools": {"p" * 30: values("spot.yaml")["pools"]["chat-8b"]},
            },
            "more than 63 characters",
        ),
    ],
)
def test_helm_refuses_values(over: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "over.yaml"
    file.write_text(yaml.safe_dump(over))
    done = template([SPOT, file])

    assert done.returncode != 0
    assert message in done.stderr


def test_a_value_is_never_read_as_yaml_or_as_a_template(tmp_path: Path) -> None:
    """Text that the schema lets through is text in the object."""
    hostile = 'x"\n- {name: EVIL, value: y}\n{{ .Release.Name }}'
    file = tmp_path / "over.yaml"
    file.write_text(
        yaml.safe_dump({"roles": {"api": {"env": {"MILLRACE_API_PUBLIC_URL": hostile}}}})
    )
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
