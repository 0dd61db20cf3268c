"""Goal: the chart limits the autoscaler's account to what the actuator writes."""

import re

import pytest

from autoscaler.actuators.kubernetes.deployments import ACTUATOR_ANNOTATION, EPOCH_ANNOTATION
from autoscaler.actuators.kubernetes.kubernetes_actuator import DELETION_COST
from tests.unit.deploy.test_chart_objects import of_kind


@pytest.mark.parametrize("name", ["spot", "warm", "region_eu"])
def test_a_policy_of_admission_names_what_the_actuator_writes(name: str) -> None:
    """What the API server makes of it: tests/chart/cluster/test_admission_policy.py."""
    (policy,) = of_kind(name, "ValidatingAdmissionPolicy").values()
    (binding,) = of_kind(name, "ValidatingAdmissionPolicyBinding").values()
    (role,) = of_kind(name, "Role").values()
    spec = policy["spec"]
    variables = {one["name"]: one["expression"] for one in spec["variables"]}

    assert re.findall(r"'([^']+/[^']+)'", variables["own"]) == [
        DELETION_COST,
        ACTUATOR_ANNOTATION,
        EPOCH_ANNOTATION,
    ]
    rules = spec["matchConstraints"]["resourceRules"]
    patched = {r for rule in role["rules"] if "patch" in rule["verbs"] for r in rule["resources"]}
    assert {r for rule in rules for r in rule["resources"]} == patched
    assert all(rule["operations"] == ["UPDATE"] for rule in rules)
    account = f"system:serviceaccount:millrace:{role['metadata']['name']}"
    (condition,) = spec["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username == '{account}'"
    assert spec["failurePolicy"] == "Fail"
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
        "matchResources": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "millrace"}}
        },
    }
    assert policy["metadata"]["name"] == "millrace-millrace-autoscaler"
    assert "namespace" not in {**policy["metadata"], **binding["metadata"]}
    assert of_kind("minimal", "ValidatingAdmissionPolicy") == {}
