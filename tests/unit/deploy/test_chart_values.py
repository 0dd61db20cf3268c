"""Goal: the chart's schema takes the examples and refuses what would install something else."""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.support.chart import CHART, RENDERINGS, all_values, values

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
BASE = all_values(*map(values, RENDERINGS["spot"]))
POOL = BASE["pools"]["chat-8b"]


def problems(over: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    found = all_values(*map(values, RENDERINGS["spot"]), over)
    return [error.json_path for error in validator.iter_errors(found)]


@pytest.mark.parametrize("name", RENDERINGS)
def test_the_schema_takes_the_examples(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(all_values(*map(values, RENDERINGS[name])))


def test_the_chart_names_no_broker_and_no_bucket_of_its_own() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)

    assert {e.json_path for e in validator.iter_errors(all_values())} == {
        "$.kafka.bootstrapServers",
        "$.objectStore.bucket",
    }


def test_a_later_file_takes_a_storage_class_back() -> None:
    """Helm removes a default by null, and leaves null where another file has the value."""
    assert problems({"pools": {"chat-8b": {"weightCache": {"storageClass": ""}}}}) == []


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown value": ({"replicas": 3}, "$"),
    "an unknown role": ({"roles": {"console": {"replicas": 1}}}, "$.roles"),
    "a misspelled field": ({"roles": {"api": {"replica": 1}}}, "$.roles.api"),
    "a negative number": ({"roles": {"api": {"replicas": -1}}}, "$.roles.api.replicas"),
    "a number as text": ({"roles": {"api": {"replicas": "2"}}}, "$.roles.api.replicas"),
    "no grace": ({"roles": {"api": {"shutdownGraceS": 0}}}, "$.roles.api.shutdownGraceS"),
    "a password in a setting": (
        {"roles": {"api": {"env": {"MILLRACE_KAFKA_SASL_PASSWORD": "x"}}}},
        "$.roles.api.env",
    ),
    "a URL with a password": (
        {"roles": {"api": {"env": {"MILLRACE_DATABASE_URL": "postgresql://a:b@c/d"}}}},
        "$.roles.api.env",
    ),
    "a key of an upstream": (
        {"pools": {"chat-8b": {"env": {"MILLRACE_ENGINE_UPSTREAM_API_KEY": "x"}}}},
        "$.pools['chat-8b'].env",
    ),
    "a user and password in the endpoint": (
        {"objectStore": {"endpointUrl": "https://user:secret@s3"}},
        "$.objectStore.endpointUrl",
    ),
    "a variable of the loader": (
        {"roles": {"api": {"env": {"LD_PRELOAD": "/tmp/x.so"}}}},
        "$.roles.api.env",
    ),
    "YAML in a name": ({"fullnameOverride": "a\n  evil: true"}, "$.fullnameOverride"),
    "a template in brokers": (
        {"kafka": {"bootstrapServers": "{{ .Release.Name }}:9092"}},
        "$.kafka.bootstrapServers",
    ),
    "flow YAML in the name of a Secret": (
        {"secrets": {"database": {"api": {"name": "a}, key: b}"}}}},
        "$.secrets.database.api.name",
    ),
    "a pool that is no topic": ({"pools": {"Chat 8B": POOL}}, "$.pools"),
    "a pool without variants": ({"pools": {"x": {**POOL, "variants": []}}}, "$.pools.x.variants"),
    "a vLLM pool without a version": (
        {"pools": {"x": {**POOL, "engine": {"kind": "vllm", "modelName": "m"}}}},
        "$.pools.x.engine",
    ),
    "an engine that does not exist": (
        {"pools": {"x": {**POOL, "engine": {"kind": "tgi", "modelName": "m"}}}},
        "$.pools.x.engine.kind",
    ),
    "no GPU": (
        {"pools": {"x": {**POOL, "variants": [{"gpuType": "l4", "gpus": 0}]}}},
        "$.pools.x.variants[0].gpus",
    ),
    "a folder of the node above its place": (
        {"pools": {"chat-8b": {"weightCache": {"hostPath": "/a", "storageClass": "b"}}}},
        "$.pools['chat-8b'].weightCache",
    ),
    "a relative folder": (
        {"pools": {"x": {**POOL, "weightCache": {"hostPath": "weights"}}}},
        "$.pools.x.weightCache.hostPath",
    ),
    "a port that is none": (
        {"networkPolicies": {"kafka": {"ports": [0]}}},
        "$.networkPolicies.kafka.ports[0]",
    ),
    "no port at all": (
        {"networkPolicies": {"kafka": {"ports": []}}},
        "$.networkPolicies.kafka.ports",
    ),
    "a peer that is empty and so everybody": (
        {"networkPolicies": {"apiFrom": [{}]}},
        "$.networkPolicies.apiFrom[0]",
    ),
    "a budget above all": (
        {"podDisruptionBudgets": {"poolsMaxUnavailable": "101%"}},
        "$.podDisruptionBudgets.poolsMaxUnavailable",
    ),
    "standby as text": (
        {"pools": {"chat-8b": {"standby": "true"}}},
        "$.pools['chat-8b'].standby",
    ),
    "standby of one variant, where the pool has it": (
        {"pools": {"x": {**POOL, "variants": [{"gpuType": "l4", "standby": True}]}}},
        "$.pools.x.variants[0]",
    ),
    "another scaler as text": (
        {"roles": {"api": {"externallyScaled": "yes"}}},
        "$.roles.api.externallyScaled",
    ),
    "a label that the chart sets": ({"labels": {"helm.sh/chart": "x"}}, "$.labels"),
    "a label of the actuator": (
        {"monitoring": {"rules": {"labels": {"millrace.dev/pool": "x"}}}},
        "$.monitoring.rules.labels",
    ),
    "a name that no Service may have": ({"fullnameOverride": "1a"}, "$.fullnameOverride"),
    "an unknown way out of the autoscaler": (
        {"autoscaler": {"egress": [{"ports": [443], "too": []}]}},
        "$.autoscaler.egress[0]",
    ),
    "a policy of admission that is text": (
        {"autoscaler": {"admissionPolicy": {"create": "false"}}},
        "$.autoscaler.admissionPolicy.create",
    ),
    "a digest that is none": (
        {"image": {"controlPlane": {"digest": "latest"}}},
        "$.image.controlPlane.digest",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_schema_refuses(name: str) -> None:
    over, path = HOSTILE[name]

    assert path in problems(over)


REMOVABLE = re.compile(
    r"\$\.secrets\.objectStore|.*\.(resources|requests|limits|cpu|memory|preStopSleepS|podLabels"
    r"|k8s-app|cidrs|to|annotations|labels)"
)
"""Values that may be removed (null in a file): templates leave out what they are for."""


def test_a_value_that_is_removed_is_refused_and_no_template_meets_none() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)

    def paths(part: dict[str, Any], where: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, value in part.items():
            yield (*where, name)
            if isinstance(value, dict):
                yield from paths(value, (*where, name))

    seen = 0
    for path in paths(all_values(), ()):
        found = copy.deepcopy(BASE)
        owner = found
        for name in path[:-1]:
            owner = owner[name]
        del owner[path[-1]]
        seen += 1
        is_required = path[0] in {"labels", "annotations"}
        is_removable = not is_required and REMOVABLE.fullmatch("$." + ".".join(path))
        assert validator.is_valid(found) is bool(is_removable), path
    assert seen > 150


def test_every_value_has_a_description_and_no_object_takes_unknown_keys() -> None:
    def walk(schema: dict[str, Any], path: str) -> None:
        for name, part in schema.get("properties", {}).items():
            where = f"{path}.{name}"
            shared = SCHEMA["$defs"].get(part.get("$ref", "").rpartition("/")[2], {})
            assert part.get("description") or shared.get("description") or "if" in path, where
            walk(part, where)
        if schema.get("type") == "object" and "properties" in schema:
            assert schema["additionalProperties"] is False, path
        for keyword in ("items", "additionalProperties"):
            if isinstance(schema.get(keyword), dict):
                walk(schema[keyword], f"{path}[]")

    walk(SCHEMA, "$")
    for name, part in SCHEMA["$defs"].items():
        walk(part, name)
