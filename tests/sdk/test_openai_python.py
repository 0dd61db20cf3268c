"""Goal: every supported release of the official client works unmodified.

A release runs its checks in one process of its own environment; each is one test here.
"""

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from tests.sdk.checks.catalogue import SIMULATED, VLLM, checks
from tests.sdk.checks.site import Site
from tests.sdk.environments import openai_python
from tests.sdk.sites import simulated_site, vllm_site
from tests.stacks import Stack

ROOT = Path(__file__).parents[2]
VERSIONS = ("1.109.1", "2.54.0", "3.51.0")
_RUN_S_MAX = 240.0

Reports = Callable[[str], dict[str, str | None]]
"""Of each check that ran under a release: what went wrong, or None."""

pytestmark = pytest.mark.timeout(400)  # the first test waits for environment, stack and all checks


@pytest.fixture(scope="module")
def simulated_reports(request: pytest.FixtureRequest, stack: Stack) -> Reports:
    """Run, once a release, the checks that this session wants of it."""
    wanted = wanted_checks(request, "test_on_the_simulated_engine")

    @cache
    def reports(version: str) -> dict[str, str | None]:
        return run_checks(version, wanted[version], simulated_site(stack))

    return reports


@pytest.mark.parametrize(
    ("version", "check"), [(v, check) for v in VERSIONS for check in checks(SIMULATED, v)]
)
def test_on_the_simulated_engine(version: str, check: str, simulated_reports: Reports) -> None:
    if failure := simulated_reports(version)[check]:
        pytest.fail(failure, pytrace=False)


@pytest.fixture(scope="module")
def vllm_reports(request: pytest.FixtureRequest, vllm_stack: Stack) -> Reports:
    """The same against real models."""
    wanted = wanted_checks(request, "test_on_vllm")

    @cache
    def reports(version: str) -> dict[str, str | None]:
        return run_checks(version, wanted[version], vllm_site(vllm_stack))

    return reports


@pytest.mark.parametrize(
    ("version", "check"), [(v, check) for v in VERSIONS for check in checks(VLLM, v)]
)
def test_on_vllm(version: str, check: str, vllm_reports: Reports) -> None:
    if failure := vllm_reports(version)[check]:
        pytest.fail(failure, pytrace=False)


def wanted_checks(request: pytest.FixtureRequest, test: str) -> dict[str, list[str]]:
    """Return the checks that were selected for each release."""
    wanted: dict[str, list[str]] = {version: [] for version in VERSIONS}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == test:
            version, check = item.callspec.params["version"], item.callspec.params["check"]
            wanted[str(version)].append(str(check))
    return wanted


def run_checks(version: str, names: list[str], site: Site) -> dict[str, str | None]:
    """Run checks under a release of the client; one that never ran says so."""
    done = subprocess.run(
        [str(openai_python(version)), "-m", "tests.sdk.checks", *names],
        input=json.dumps(asdict(site)),
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=_RUN_S_MAX,
    )
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert {report["client"] for report in reports} <= {version}
    ended_early = f"did not run: the process ended with {done.returncode}\n{done.stderr}"
    return dict.fromkeys(names, ended_early) | {r["check"]: r["failure"] for r in reports}
