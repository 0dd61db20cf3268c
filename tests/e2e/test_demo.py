"""Goal: the demo runs real texts through real models, checks its results, and leaves no process."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from cli.demo.demo_jobs import JOBS
from tests.support.until import STEP_S_MAX, until

DEMO_S_MAX = 500
TEXT_COUNT, PROMPT_COUNT = 30, 4


def children_of(temporary: Path) -> list[psutil.Process]:
    """Return the processes that were started with `temporary` as their TMPDIR."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("TMPDIR") == str(temporary):
                found.append(process)
        except psutil.Error:
            continue
    return found


def custom_ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


@pytest.mark.timeout(DEMO_S_MAX + 60)
def test_the_demo_passes_its_own_checks(tmp_path: Path) -> None:
    temporary, out = tmp_path / "t", tmp_path / "out"
    temporary.mkdir()
    counts = ("--texts", str(TEXT_COUNT), "--prompts", str(PROMPT_COUNT))

    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo", "--out", str(out), *counts],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=DEMO_S_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "parse a date from a string" in done.stdout
    for job in JOBS:
        requested = custom_ids(out / f"{job.name}.requests.jsonl")
        assert custom_ids(out / f"{job.name}.results.jsonl") == requested
        assert set(Counter(requested).values()) == {1}
    assert len(custom_ids(out / "chat.results.jsonl")) == PROMPT_COUNT
    assert list(temporary.glob("millrace-demo-*")) == []
    until(lambda: children_of(temporary) == [], "the end of all processes", STEP_S_MAX)
