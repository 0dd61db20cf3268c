"""Goal: a signal stops a starting `millrace up` at once."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

STOP_S_MAX = 20.0  # 15, and some for a busy machine
NOWHERE = {
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "MILLRACE_DATABASE_URL": "postgresql://127.0.0.1:1/none",
}
DOWNLOADS = """
import time
from pathlib import Path
from cli.stack import jars
from core.shutdown import cut_short_by_signals, stop_on_signals

def fetch(context, coordinate):
    print("fetching", flush=True)
    time.sleep(60)

jars._maven, jars._fetch = lambda folder: None, fetch
stop_on_signals()
try:
    with cut_short_by_signals():
        jars.cached_jars(Path("cache"))
except KeyboardInterrupt:
    pass
"""


def await_true(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 60
    while not true():
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


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
def test_signal_interrupts_a_starting_stack(
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
        await_true(lambda: awaited.exists() and word in awaited.read_text(), process)
        began_s = time.monotonic()
        process.send_signal(number)
        told, _ = process.communicate(timeout=60)

    assert time.monotonic() - began_s < STOP_S_MAX
    assert process.returncode == 0, said.read_text()
    assert told == b""
    assert "Traceback" not in said.read_text()


def test_signal_interrupts_a_download(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DOWNLOADS],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
        await_true(lambda: "fetching" in said.read_text(), process)
        began_s = time.monotonic()
        process.terminate()
        process.wait(60)

    assert time.monotonic() - began_s < STOP_S_MAX
    assert process.returncode == 0, said.read_text()
    assert not list((tmp_path / "cache").glob("kafka-jars-partial-*"))
