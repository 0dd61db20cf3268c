"""Replicas as processes, for tests that stop, pause or crash them."""

import json
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cli.stack.processes.child import Child, spawn
from tests.integration.gpu_consumers.threaded_replica import POOL
from tests.support.ports import free_port
from topics.settings import KafkaSettings

SESSION_S = 2.0
_GAUGE = re.compile(r"^(millrace_\w+) ([0-9.e+]+)$", re.M)


class ReplicaProcess:
    """A running `python -m gpu_consumers` with the simulated engine."""

    def __init__(self, kafka: KafkaSettings, folder: Path, name: str, **env: str) -> None:
        self.port = free_port(folder)
        env["MILLRACE_GPU_METRICS_PORT"] = str(self.port)
        self.name, self._log = name, folder / f"{name}.log"
        self.process = spawn(replica_child(kafka, folder, name, env), folder)

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics without labels; none while the process does not answer."""
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

    def diagnosis(self) -> str:
        """Return the metrics and the log, for the report of a failed test."""
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


def faults(*by_text: tuple[str, str], slow_s: float = 0) -> str:
    """Return the setting that gives items with a text in their body a fault."""
    return json.dumps(
        [
            {"contains": text, "fault": fault} | ({"slow_s": slow_s} if fault == "slow" else {})
            for text, fault in by_text
        ]
    )


@contextmanager
def running(*replicas: ReplicaProcess) -> Iterator[None]:
    """Kill the replicas after the block; add their diagnosis to a failure."""
    try:
        yield
    except AssertionError as failure:
        for replica in replicas:
            failure.add_note(replica.diagnosis())
        raise
    finally:
        for replica in replicas:
            replica.resume()
            replica.process.send(signal.SIGKILL)
            replica.process.kill_and_reap()
