"""Goal: the API process handles large files in constant memory and stops cleanly."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
import sqlalchemy as sa

from tenancy.api_keys import create_key
from tenancy.tenants import create_tenant
from tests.integration.api.pipe import open_pipe
from tests.support.ports import free_port
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import CALLERS, CAPACITY, CONTROL, REPLIES
from topics.settings import KafkaSettings

MIB = 1024 * 1024
SIZE_BYTES = 64 * MIB
RESIDENT_BYTES_MAX = 32 * MIB
BLOCK = bytes(range(256)) * 4096  # one MiB
READY_S_MAX = 30.0
ENDS_S_MAX = 6.0  # a second of it is for requests in flight; Postgres would be waited for 8 s


@contextmanager
def api_process(
    kafka: KafkaSettings, database_url: str, root: Path, port: int, **more: str
) -> Iterator[psutil.Process]:
    env = os.environ | {
        "MILLRACE_API_PORT": str(port),
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
        "MILLRACE_DATABASE_URL": database_url.replace("postgresql+psycopg", "postgresql"),
        "MILLRACE_OBJECTS_ROOT": str(root),
        **more,
    }
    log = root / "api.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "api"], env=env, stderr=stderr)
    try:
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/readyz").raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(15) == 0, log.read_text()
        finally:
            process.kill()


@pytest.fixture
def kafka(kafka: KafkaSettings) -> KafkaSettings:
    """The broker with the topics of an API."""
    TopicAdmin(kafka).create((CALLERS, CAPACITY, CONTROL, REPLIES))
    return kafka


@pytest.fixture
def bearer(database_url: str) -> dict[str, str]:
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        key = create_key(connection, create_tenant(connection, "one"), "test")
    return {"authorization": f"Bearer {key.secret}"}


@pytest.mark.timeout(300)
def test_a_large_file_needs_constant_memory(
    kafka: KafkaSettings, bearer: dict[str, str], database_url: str, tmp_path: Path
) -> None:
    port = free_port(tmp_path)
    with (
        api_process(kafka, database_url, tmp_path, port) as process,
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers=bearer,
            timeout=60,
        ) as client,
    ):
        client.post("/v1/files", data={"purpose": "batch"}, files={"file": b"warm"})
        before = process.memory_info().rss
        head = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        head += b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        most = before

        def form() -> Iterator[bytes]:
            nonlocal most
            yield head
            for _ in range(SIZE_BYTES // MIB):
                yield BLOCK
                most = max(most, process.memory_info().rss)
            yield b"\r\n--b--\r\n"

        kind = {"content-type": "multipart/form-data; boundary=b"}
        created = client.post("/v1/files", content=form(), headers=kind).json()
        assert created["bytes"] == SIZE_BYTES

        digest = hashlib.sha256()
        with client.stream("GET", f"/v1/files/{created['id']}/content") as answer:
            for data in answer.iter_raw():
                digest.update(data)
                most = max(most, process.memory_info().rss)
    assert digest.hexdigest() == hashlib.sha256(BLOCK * (SIZE_BYTES // MIB)).hexdigest()
    assert most - before < RESIDENT_BYTES_MAX


def test_shutdown_while_postgres_hangs(
    kafka: KafkaSettings, bearer: dict[str, str], database_url: str, tmp_path: Path
) -> None:
    port, limits = free_port(tmp_path), {"MILLRACE_API_SHUTDOWN_GRACE_S": "1"}
    url = f"http://127.0.0.1:{port}"
    with open_pipe(database_url) as pipe, ThreadPoolExecutor(1) as threads:
        with api_process(kafka, pipe.url, tmp_path, port, **limits):
            pipe.stall()
            asking = threads.submit(
                httpx.get,
                f"{url}/v1/files",
                headers=bearer,
                timeout=30,
            )
            in_flight = "\nmillrace_api_requests_in_flight 2.0"  # that one and the look itself
            until(lambda: in_flight in httpx.get(f"{url}/metrics").text)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < ENDS_S_MAX
        assert asking.result().status_code == 503
