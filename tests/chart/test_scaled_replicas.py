"""Goal: an upgrade keeps the number of replicas that something else than Helm has set."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.chart.tools import run, values_file
from tests.support.chart import CHART, EXAMPLES, RENDERINGS, golden
from tests.support.fake_cluster import cluster, deployment

KINDS = [(one["apiVersion"], one["kind"]) for name in RENDERINGS for one in golden(name)]
APPLIED = ("helm", "Apply")
"""Fields that Helm applies on the server, the default of new releases."""

MERGED = ("helm", "Update")
"""Fields of a release that Helm merges itself, as those that Helm 3 installed."""

SCALER = ("python-aiohttp", "Update")


def replicas(
    tmp_path: Path, running: list[dict[str, Any]], over: dict[str, Any], *examples: str
) -> dict[str, Any]:
    """Return `replicas` of each Deployment that an upgrade applies; None where it is left out."""
    file = values_file(tmp_path, over)
    files = [*(EXAMPLES / name for name in examples), file]
    chosen = [part for one in files for part in ("--values", str(one))]
    where = ("--namespace", "millrace", "--is-upgrade", "--disable-openapi-validation")
    with cluster(tmp_path, KINDS, running) as config:
        asked = ("--dry-run=server", "--no-hooks", "--kubeconfig", config)
        done = run("helm", "template", "millrace", CHART, *where, *asked, *chosen)
    assert done.returncode == 0, done.stderr
    return {
        one["metadata"]["name"]: one["spec"].get("replicas")
        for one in yaml.safe_load_all(done.stdout)
        if one and one["kind"] == "Deployment"
    }


@pytest.mark.parametrize("name", ["api", "batcher-bulk", "results-writer", "chat-8b-l4-spot"])
@pytest.mark.parametrize(
    ("managers", "kept"),
    [
        # Another one owns the number: Helm would be in conflict once it changes.
        ({APPLIED: False, SCALER: True}, None),
        ({APPLIED: True, SCALER: True}, None),
        # No scaler has changed `replicas` yet, or Helm merges on the client: Kubernetes would set
        # a field that is left out to its default, 1.
        ({APPLIED: True}, 7),
        ({MERGED: False, SCALER: True}, 7),
        ({MERGED: True}, 7),
    ],
)
def test_the_number_that_runs_is_kept(
    name: str, managers: dict[tuple[str, str], bool], kept: int | None, tmp_path: Path
) -> None:
    running = [deployment(f"millrace-{name}", 7, managers)]
    found = replicas(tmp_path, running, {}, "spot.yaml", "warm.yaml")

    assert found[f"millrace-{name}"] == kept


def test_zero_is_kept(tmp_path: Path) -> None:
    running = [deployment("millrace-chat-8b-h100", 0, {MERGED: True, SCALER: True})]
    found = replicas(tmp_path, running, {}, "spot.yaml")

    assert found["millrace-chat-8b-h100"] == 0  # the values say 1


def test_what_does_not_run_yet_starts_with_the_number_of_the_values(tmp_path: Path) -> None:
    found = replicas(tmp_path, [], {"roles": {"api": {"replicas": 5}}}, "spot.yaml", "warm.yaml")

    assert found["millrace-api"] == 5
    assert found["millrace-chat-8b-h100"] == 1
    assert found["millrace-chat-8b-l4"] == 0


def test_a_role_without_a_policy_has_the_number_of_the_values(tmp_path: Path) -> None:
    names = ("finaliser", "batcher-interactive", "autoscaler")
    running = [deployment(f"millrace-{name}", 7, {APPLIED: True}) for name in (*names, "intake")]
    found = replicas(tmp_path, running, {}, "spot.yaml", "warm.yaml")

    assert [found[f"millrace-{name}"] for name in names] == [2, 2, 2]
    assert found["millrace-intake"] == 7  # it has a policy, which only observes


def test_other_scalers_are_told_to_the_chart(tmp_path: Path) -> None:
    running = [
        deployment("millrace-finaliser", 6, {APPLIED: False, SCALER: True}),
        deployment("millrace-simulated-none", 9, {MERGED: True}),
        deployment("millrace-api", 7, {APPLIED: True}),
    ]
    scaled = {"externallyScaled": True}
    over = {"roles": {"finaliser": scaled}, "pools": {"simulated": scaled}}
    found = replicas(tmp_path, running, over, "minimal.yaml")

    assert found["millrace-finaliser"] is None
    assert found["millrace-simulated-none"] == 9
    assert found["millrace-api"] == 1
