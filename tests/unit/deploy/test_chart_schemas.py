"""Goal: each object of the chart and beside it is valid in every supported Kubernetes."""

import copy
import json
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.support.chart import (
    APPLIED_APART,
    DIGEST,
    EXAMPLES,
    RENDERINGS,
    ROOT,
    VERSIONS,
    custom_schema,
    golden,
    objects,
    sources_digest,
)

SCHEMA_CONTENTS = cache(kubernetes_validate.utils.schema_contents)


def first(name: str, kind: str) -> dict[str, Any]:
    return next(one for one in golden(name) if one["kind"] == kind)


@cache
def validator(path: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((ROOT / path).read_text()))


def check(one: dict[str, Any], version: str) -> None:
    """Validate an object of Kubernetes or a custom resource. Raises ValidationError."""
    schema = custom_schema(one)
    if schema.exists():
        validator(str(schema.relative_to(ROOT))).validate(one)
    else:
        kubernetes_validate.validate(one, version, strict=True)


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads megabytes of definitions again for each object."""
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", SCHEMA_CONTENTS)


def test_the_renderings_are_those_of_the_chart() -> None:
    """`make chart-golden` renders again, and `make chart` compares with Helm itself."""
    assert DIGEST.read_text().strip() == sources_digest()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(version: str) -> None:
    seen = {json.dumps(one): one for name in RENDERINGS for one in golden(name)}
    for one in seen.values():
        check(one, version)
    kinds = {one["kind"] for one in seen.values()}
    assert {"Deployment", "ScaledObject", "PodMonitor", "PrometheusRule", "Job"} <= kinds
    assert {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} <= kinds


def test_a_wrong_field_is_not_valid() -> None:
    deployment = copy.deepcopy(first("minimal", "Deployment"))
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    scaled = copy.deepcopy(first("keda", "ScaledObject"))
    scaled["spec"]["maxReplicas"] = 3
    for one in (deployment, scaled):
        with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
            check(one, VERSIONS[-1])


@pytest.mark.parametrize("file", APPLIED_APART)
def test_objects_beside_the_chart_are_valid(file: str) -> None:
    for one in objects((EXAMPLES / file).read_text()):
        assert custom_schema(one).exists()
        check(one, VERSIONS[-1])
