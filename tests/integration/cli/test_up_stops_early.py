"""Goal: a stop signal ends a starting `millrace up` as quickly as a ready one."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.until import until

STOP_S_MAX = 20.0  # 15, and some for a busy machine
NOWHERE = {
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "MILLRACE_DATABASE_URL": "postgresql://127.0.0.1:1/none",
}
DOWNLOADS = """
import time
from pathlib import Path
from cli.stack import jars
from core.shutdown import interrupted_by_signals, stop_on_signals

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


def until_or_exit(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until(lambda: process.poll() is not None or condition(), timeout_s=60)
    assert process.poll() is None


@pytest.mark.parametrize(
    ("env", "log_name", "word", "number"),
    [
        ({}, "up.log", "waiting for another process", signal.SIGTERM),
        ({}, "up.log", "waiting for another process", signal.SIGHUP),
        # This child is started just before the wait.
        (NOWHERE, "gpu-simulated-simulated.log", "", signal.SIGTERM),
    ],
    ids=["download", "download, SIGHUP", "broker"],
)
def test_a_stop_ends_a_waiting_start(
    env: dict[str, str], log_name: str, word: str, number: signal.Signals, tmp_path: Path
) -> None:
    cache, data = tmp_path / "cache", tmp_path / "data"
    logs, said = data / "logs", data / "logs" / "up.log"
    cache.mkdir()
    logs.mkdir(parents=True)
    if env:
        env = {**env, "MILLRACE_OBJECTS_ROOT": str(tmp_path / "objects")}
    command = [sys.executable, "-m", "cli.main", "up", "--port", "0", "--data", str(data)]
    with (cache / "kafka-jars.lock").open("w") as held, said.open("w") as log:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command,
            env={**os.environ, **env, "MILLRACE_CACHE": str(cache)},
            stdout=subprocess.PIPE,
            stderr=log,
        )
        awaited = logs / log_name
        until_or_exit(lambda: awaited.exists() and word in awaited.read_text(), process)
        began_s = time.monotonic()
        process.send_signal(number)
        told, _ = process.communicate(timeout=60)

    assert time.monotonic() - began_s < STOP_S_MAX
    assert process.returncode == 0, said.read_text()
    assert told == b""
    assert "Traceback" not in said.read_text()


def test_a_stop_waits_for_no_download(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DOWNLOADS],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
        until_or_exit(lambda: "fetching" in said.read_text(), process)
        began_s = time.monotonic()
        process.terminate()
        process.wait(60)

    assert time.monotonic() - began_s < STOP_S_MAX
    assert process.returncode == 0, said.read_text()
    assert not list((tmp_path / "cache").glob("kafka-jars-partial-*"))
