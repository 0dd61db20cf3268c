"""Runs of the checks: all checks of a release run in one process of its environment."""

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from tests.sdk.checks.site import Site
from tests.sdk.environments import openai_python

ROOT = Path(__file__).parents[2]
VERSIONS = ("1.109.1", "2.54.0", "3.51.0")
_RUN_S_MAX = 240.0

Reports = Callable[[str], dict[str, str | None]]
"""Maps a release to its checks and their failures; None for a passed check."""


def reports_of(request: pytest.FixtureRequest, test: str, new_site: Callable[[], Site]) -> Reports:
    """Return a function that runs the selected checks of `test`, once for each release.

    Each release has a site of its own. All run at once: their checks mostly wait.
    """
    selected = selected_checks(request, test)

    @cache
    def all_reports() -> dict[str, dict[str, str | None]]:
        chosen = {version: names for version, names in selected.items() if names}
        sites = [new_site() for _ in chosen]
        with ThreadPoolExecutor(len(chosen)) as threads:
            reports = threads.map(run_checks, chosen, chosen.values(), sites)
            return dict(zip(chosen, reports, strict=True))

    return lambda version: all_reports()[version]


def selected_checks(request: pytest.FixtureRequest, test: str) -> dict[str, list[str]]:
    """Return the selected checks of each release."""
    selected: dict[str, list[str]] = {version: [] for version in VERSIONS}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == test:
            version, check = item.callspec.params["version"], item.callspec.params["check"]
            selected[str(version)].append(str(check))
    return selected


def run_checks(version: str, names: list[str], site: Site) -> dict[str, str | None]:
    """Run checks under a release of the client; a check that did not run is a failure."""
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
