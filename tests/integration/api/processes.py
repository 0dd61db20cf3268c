"""API processes that a test kills or stops."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.ports import free_port
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import CALLERS, CAPACITY, CONTROL, DEMAND, REPLIES
from topics.settings import KafkaSettings

READY_S_MAX = 60.0


@dataclass
class ApiProcess:
    """An API process that can be killed and started again at its port."""

    env: dict[str, str]
    url: str
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        with self.log.open("ab") as stderr:
            command = [sys.executable, "-m", "api"]
            self.process = subprocess.Popen(command, env=self.env, stderr=stderr)
        until(self._is_ready, timeout_s=READY_S_MAX)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.process.wait()

    def client(self, secret: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz").status_code == 200
        return False


@contextmanager
def api_process(
    kafka: KafkaSettings, database_url: str, root: Path, **more: str
) -> Iterator[ApiProcess]:
    """Create the topics of an API and run one; `more` are variables of its environment."""
    TopicAdmin(kafka).create((CALLERS, CAPACITY, CONTROL, DEMAND, REPLIES))
    port = free_port(root)
    env = os.environ | {
        "MILLRACE_API_PORT": str(port),
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
        "MILLRACE_DATABASE_URL": database_url.replace("postgresql+psycopg", "postgresql"),
        "MILLRACE_OBJECTS_ROOT": str(root / "objects"),
        **more,
    }
    api = ApiProcess(env, f"http://127.0.0.1:{port}", root / "api.log")
    api.start()
    try:
        yield api
    finally:
        api.kill()
