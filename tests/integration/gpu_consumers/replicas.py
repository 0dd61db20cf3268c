"""Replicas as processes of their own, for tests that stop, pause or poison them."""

import json
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cli.stack.processes.child import Child, spawn
from tests.integration.gpu_consumers.bench import POOL
from tests.support.ports import free_port
from topics.settings import KafkaSettings

SESSION_S = 2.0
_GAUGE = re.compile(r"^(millrace_\w+) ([0-9.e+]+)$", re.M)


class Replica:
    """A running `python -m gpu_consumers` with the simulated engine."""

    def __init__(self, kafka: KafkaSettings, folder: Path, name: str, **env: str) -> None:
        self.port = free_port(folder)
        env["MILLRACE_GPU_METRICS_PORT"] = str(self.port)
        self.name, self._log = name, folder / f"{name}.log"
        self.process = spawn(replica_child(kafka, folder, name, env), folder)

    def metrics(self) -> Mapping[str, float]:
        """Return those without labels; none while it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/metrics", timeout=2
            ) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, OSError):
            return {}
        return {name: float(value) for name, value in _GAUGE.findall(text)}

    def pause(self) -> None:
        self.process.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send(signal.SIGCONT)

    def story(self) -> str:
        """Return what a reader of a failure needs to know of this replica."""
        return f"{self.name}: {dict(self.metrics())}\n{self._log.read_text()}"


def replica_child(kafka: KafkaSettings, folder: Path, name: str, env: Mapping[str, str]) -> Child:
    return Child(
        name=name,
        argv=(sys.executable, "-m", "gpu_consumers"),
        env={
            "PYTHONUNBUFFERED": "1",
            "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
            "MILLRACE_KAFKA_SESSION_TIMEOUT_S": str(SESSION_S),
            "MILLRACE_OBJECTS_KIND": "local",
            "MILLRACE_OBJECTS_ROOT": str(folder / "objects"),
            "MILLRACE_GPU_POOL": POOL,
            "MILLRACE_GPU_JOB_CLASS": "bulk",
            "MILLRACE_ENGINE_KIND": "simulated",
            "MILLRACE_ENGINE_MODEL_NAME": "m",
            **env,
        },
        backoff_s_max=0.5,
    )


def faults(*told: tuple[str, str], slow_s: float = 0) -> str:
    """Return the setting for (text in the body, fault)."""
    return json.dumps(
        [
            {"contains": text, "fault": fault} | ({"slow_s": slow_s} if fault == "slow" else {})
            for text, fault in told
        ]
    )


@contextmanager
def running(*replicas: Replica) -> Iterator[None]:
    """End the replicas after a block, paused or not; a failure tells what became of them."""
    try:
        yield
    except AssertionError as failure:
        for replica in replicas:
            failure.add_note(replica.story())
        raise
    finally:
        for replica in replicas:
            replica.resume()
            replica.process.send(signal.SIGKILL)
            replica.process.kill_and_reap()


def await_that(check: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Poll until `check` holds; return the seconds it took."""
    began_s = time.monotonic()
    while not check():
        assert time.monotonic() - began_s < timeout_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)
    return time.monotonic() - began_s
