"""Goal: a role with invalid settings ends at once, with the exit code and reason for `up`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.stack.processes.child import last_exit_reason
from cli.stack.processes.role_children import MODULES
from core.runtime.role_lifecycle import EXIT_INVALID_SETTINGS

PREFIXES = {
    "api": "MILLRACE_API_",
    "intake": "MILLRACE_INTAKE_",
    "batcher": "MILLRACE_BATCHER_",
    "gpu-consumer": "MILLRACE_GPU_",
    "results-writer": "MILLRACE_WRITER_",
    "finaliser": "MILLRACE_FINALISER_",
    "webhooks": "MILLRACE_WEBHOOKS_",
    "autoscaler": "MILLRACE_AUTOSCALER_",
}

ENGINE = {"MILLRACE_ENGINE_KIND": "simulated", "MILLRACE_ENGINE_MODEL_NAME": "m"}


OTHERS = {
    role: [
        *(["MILLRACE_KAFKA_NOPE"] if role != "finaliser" else []),
        *(["MILLRACE_DATABASE_NOPE"] if role not in ("gpu-consumer", "autoscaler") else []),
    ]
    for role in PREFIXES
}
"""Settings that roles share."""


@pytest.mark.parametrize("role", MODULES)
def test_roles_report_invalid_settings_in_the_same_way(role: str, tmp_path: Path) -> None:
    wrong = [f"{PREFIXES[role]}NOPE", *OTHERS[role]]
    log = tmp_path / "role.log"
    with log.open("wb") as out:
        ended = subprocess.run(
            [sys.executable, "-m", *MODULES[role]],
            env={**os.environ, **ENGINE, **dict.fromkeys(wrong, "1")},
            stdout=out,
            stderr=out,
            timeout=60,
            check=False,
        )

    assert ended.returncode == EXIT_INVALID_SETTINGS
    reason = last_exit_reason(log)
    assert reason is not None, log.read_text()
    assert [name for name in wrong if name not in reason] == []
