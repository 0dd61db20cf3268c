"""Goal: Helm refuses scaling policies that the Deployments of the chart cannot carry out."""

from pathlib import Path
from typing import Any

import pytest

from tests.chart.tools import template, values_file
from tests.support.chart import EXAMPLES, key_of, objects, spot_policies, values

SPOT = EXAMPLES / "spot.yaml"


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (spot_policies("[actuators", "[actuators\n"), "autoscaler.policies: toml:"),
        (
            spot_policies("[pools.chat-8b]", "[pools.chat-8b]\nwarm_replicas = 1"),
            "pools.chat-8b: warm_replicas of its scaling policy needs pools.chat-8b.standby: true",
        ),
        (
            # A pattern, and the number of the defaults.
            spot_policies(
                '[pools."embed.small"]', '[defaults]\nwarm_replicas = 1\n[pools."embed*"]'
            ),
            "warm_replicas of its scaling policy needs",
        ),
        (
            spot_policies('release = "millrace"', "standby = true"),
            "pools.chat-8b: standby is false here and true in actuators.cluster",
        ),
        (
            {"pools": {"chat-8b": {"standby": True}}},
            "pools.chat-8b: standby is true here and false in actuators.cluster",
        ),
        (
            spot_policies('release = "millrace"', 'release = "other"'),
            'actuators.cluster needs release = "millrace"',
        ),
        (
            spot_policies('kind = "kubernetes"\nrelease = "millrace"', 'kind = "embedded"'),
            "is of kind embedded",
        ),
        (
            spot_policies('kind = "kubernetes"\nrelease = "millrace"', 'kind = "keda"'),
            "needs autoscaler.keda.enabled",
        ),
        (
            spot_policies("replicas_min = 1", 'actuator = "gone"'),
            "pools.chat-8b: autoscaler.policies has no table actuators.gone",
        ),
        (
            spot_policies('gpu_types = ["h100", "l4"]', ""),
            "pools.chat-8b: its scaling policy needs gpu_types",
        ),
        (
            {"pools": {"chat-8b": {"variants": [{"gpuType": "l4"}]}}},
            'that no variant has: gpuType h100, spot false, zone ""',
        ),
        (
            {"pools": {"embed.small": {"variants": [{"gpuType": "l4"}]}}},
            'that no variant has: gpuType l4, spot true, zone ""',
        ),
        (
            spot_policies('release = "millrace"', "per_zone = true")
            | {"pools": {"embed.small": {"variants": [{"gpuType": "l4", "zone": "a"}]}}},
            "pools.embed.small: its scaling policy may order a replica that no variant has",
        ),
    ],
)
def test_helm_refuses_policies_that_these_deployments_cannot_follow(
    over: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = values_file(tmp_path, over)
    done = template([SPOT, file])

    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize(
    "over",
    [
        {"autoscaler": {"enabled": False}, "pools": {"chat-8b": {"standby": True}}},
        spot_policies(
            'kind = "kubernetes"\nrelease', 'kind = "kubernetes"\nnamespace = "a"\nrelease'
        ),
        spot_policies(
            'kind = "kubernetes"\nrelease = "millrace"', 'kind = "command"\ncommand = ["/x"]'
        ),
        spot_policies('[pools.chat-8b]\nmode = "active"', '[pools.chat-8b]\nmode = "observe"'),
    ],
)
def test_policies_for_other_places_are_not_checked(over: dict[str, Any], tmp_path: Path) -> None:
    file = values_file(tmp_path, over)
    done = template([SPOT, file])

    assert done.returncode == 0, done.stderr


def test_a_role_that_keda_scales_has_a_scaled_object(tmp_path: Path) -> None:
    text = values("keda.yaml")["autoscaler"]["policies"]
    table = "\n[roles.batcher]\ntarget_per_s = 300\nreplicas_min = 2\nreplicas_max = 16\n"
    file = values_file(tmp_path, {"autoscaler": {"policies": text + table}})
    done = template([SPOT, EXAMPLES / "keda.yaml", file])

    assert done.returncode == 0, done.stderr
    (spec,) = [
        one["spec"]
        for one in objects(done.stdout)
        if key_of(one) == ("ScaledObject", "millrace-batcher-bulk")
    ]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 16)
    assert spec["scaleTargetRef"] == {"name": "millrace-batcher-bulk"}
    assert spec["triggers"][0]["metadata"] == {
        "pool": "role:batcher",
        "scalerAddress": "millrace-autoscaler.millrace.svc:9095",
    }


def test_keda_may_start_as_many_replicas_as_any_hour_of_the_policy(tmp_path: Path) -> None:
    text = values("keda.yaml")["autoscaler"]["policies"]
    hours = '\n[[defaults.schedule]]\nhours = "Mon-Fri 08:00-18:00 UTC"\nreplicas_max = 250\n'
    variants = [{"gpuType": "l4"}, {"gpuType": "l4", "spot": True, "replicasMax": 3}]
    over = {"autoscaler": {"policies": text + hours}, "pools": {"chat-8b": {"variants": variants}}}
    file = values_file(tmp_path, over)
    done = template([SPOT, EXAMPLES / "keda.yaml", file])
    found = {key_of(one): one for one in objects(done.stdout)}

    names = ("millrace-chat-8b-l4", "millrace-chat-8b-l4-spot")
    most = [found["ScaledObject", name]["spec"]["maxReplicaCount"] for name in names]
    assert most == [250, 3]
