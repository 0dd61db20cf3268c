"""Goal: a failed migration reports why the database is unreachable, without a password."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECRET = "hunter2-secret"


def migrate(url: str) -> dict[str, str]:
    """Return the last line of a run that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "migrations"],
        cwd=ROOT,
        env={**os.environ, "MILLRACE_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert SECRET not in done.stderr
    told: dict[str, str] = json.loads(done.stderr.splitlines()[-1])
    return told


def test_an_unavailable_database_is_reported_with_the_driver_message() -> None:
    told = migrate(f"postgresql://me:{SECRET}@127.0.0.1:1/jobs")

    assert told["event"] == "not upgraded"
    assert told["error"] == "OperationalError"
    assert "127.0.0.1" in told["reason"]
    assert "port 1 " in told["reason"]


def test_a_password_with_an_at_sign_is_never_shown() -> None:
    told = migrate(f"postgresql://me:p@{SECRET}@127.0.0.1:1/jobs")

    assert told["code"] == "invalid_settings"
    assert "%40" in told["reason"]
