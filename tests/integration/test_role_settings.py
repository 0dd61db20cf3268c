"""Goal: a role with wrong settings ends at once, with the code and the reason that `up` reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.stack.processes.child_logs import last_exit_reason
from cli.stack.processes.role_children import MODULES
from core.role_life import WRONG_SETTINGS

PREFIXES = {
    "api": "MILLRACE_API_",
    "intake": "MILLRACE_INTAKE_",
    "batcher": "MILLRACE_BATCHER_",
    "gpu-consumer": "MILLRACE_GPU_",
    "results-writer": "MILLRACE_WRITER_",
    "finaliser": "MILLRACE_FINALISER_",
    "webhooks": "MILLRACE_WEBHOOKS_",
}

ENGINE = {"MILLRACE_ENGINE_KIND": "simulated", "MILLRACE_ENGINE_MODEL_NAME": "m"}


OTHERS = {
    role: [
        *(["MILLRACE_KAFKA_NOPE"] if role != "finaliser" else []),
        *(["MILLRACE_DATABASE_NOPE"] if role != "gpu-consumer" else []),
    ]
    for role in PREFIXES
}
"""Of what a role reads beside its own."""


@pytest.mark.parametrize("role", MODULES)
def test_wrong_settings_of_all_kinds_are_told_in_one_shape(role: str, tmp_path: Path) -> None:
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

    assert ended.returncode == WRONG_SETTINGS
    reason = last_exit_reason(log)
    assert reason is not None, log.read_text()
    assert [name for name in wrong if name not in reason] == []
