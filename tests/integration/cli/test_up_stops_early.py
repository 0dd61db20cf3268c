"""Goal: a signal stops a starting `millrace up` at once."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.until import until

STOP_S_MAX = 20.0  # 15, plus a margin for a busy machine
UNREACHABLE = {
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "MILLRACE_DATABASE_URL": "postgresql://127.0.0.1:1/none",
}
DOWNLOADS = """
import time
from pathlib import Path
from cli.stack import jars
from core.runtime.shutdown import interrupted_by_signals, stop_on_signals

def fetch(context, coordinate):
    print("fetching", flush=True)
    time.sleep(60)

jars._maven, jars._fetch = lambda folder: None, fetch
stop_on_signals()
try:
    with interrupted_by_signals():
        jars.cached_jars(Path("cache"))
except KeyboardInterrupt:
    pass
"""


def wait_while_running(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    until(lambda: process.poll() is not None or condition(), timeout_s=60)
    assert process.poll() is None


@pytest.mark.parametrize(
    ("env", "log_name", "word"),
    [
        ({}, "up.log", "waiting for another process"),
        # This child starts just before the wait for the broker.
        (UNREACHABLE, "gpu-simulated-simulated.log", ""),
    ],
    ids=["download", "broker"],
)
def test_signal_interrupts_a_starting_stack(
    env: dict[str, str], log_name: str, word: str, tmp_path: Path
) -> None:
    cache, data = tmp_path / "cache", tmp_path / "data"
    logs, output = data / "logs", data / "logs" / "up.log"
    cache.mkdir()
    logs.mkdir(parents=True)
    if env:
        env = {**env, "MILLRACE_OBJECTS_ROOT": str(tmp_path / "objects")}
    command = [sys.executable, "-m", "cli.main", "up", "--port", "0", "--data", str(data)]
    with (cache / "kafka-jars.lock").open("w") as lock, output.open("w") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command,
            env={**os.environ, **env, "MILLRACE_CACHE": str(cache)},
            stdout=subprocess.PIPE,
            stderr=log,
        )
        awaited = logs / log_name
        wait_while_running(process, lambda: awaited.exists() and word in awaited.read_text())
        began_s = time.monotonic()
        process.terminate()
        stdout, _ = process.communicate(timeout=60)

    assert time.monotonic() - began_s < STOP_S_MAX
    assert process.returncode == 0, output.read_text()
    assert stdout == b""
    assert "Traceback" not in output.read_text()


def test_signal_interrupts_a_download(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DOWNLOADS],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
        wait_while_running(process, lambda: "fetching" in output.read_text())
        began_s = time.monotonic()
        process.terminate()
        process.wait(60)

    assert time.monotonic() - began_s < STOP_S_MAX
    assert process.returncode == 0, output.read_text()
    assert not list((tmp_path / "cache").glob("kafka-jars-partial-*"))
