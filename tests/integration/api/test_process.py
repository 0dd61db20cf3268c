"""Goal: the API process handles large files in constant memory and stops cleanly."""

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from tenancy.api_keys import create_key
from tenancy.tenants import create_tenant
from tests.integration.api.pipe import open_pipe
from tests.integration.api.processes import api_process
from tests.support.until import until
from topics.settings import KafkaSettings

MIB = 1024 * 1024
SIZE_BYTES = 64 * MIB
RESIDENT_BYTES_MAX = 32 * MIB
BLOCK = bytes(range(256)) * 4096  # one MiB
ENDS_S_MAX = 6.0  # a second of it is for requests in flight; Postgres would be waited for 8 s


@pytest.fixture
def secret(engine: sa.Engine) -> str:
    with engine.begin() as connection:
        return create_key(connection, create_tenant(connection, "one"), "test").secret


@pytest.mark.timeout(300)
def test_a_large_file_needs_constant_memory(
    kafka: KafkaSettings, secret: str, database_url: str, tmp_path: Path
) -> None:
    with api_process(kafka, database_url, tmp_path) as api, api.client(secret) as client:
        process = psutil.Process(api.process.pid)
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
    kafka: KafkaSettings, secret: str, database_url: str, tmp_path: Path
) -> None:
    limits = {"MILLRACE_API_SHUTDOWN_GRACE_S": "1"}
    with (
        open_pipe(database_url) as pipe,
        ThreadPoolExecutor(1) as threads,
        api_process(kafka, pipe.url, tmp_path, **limits) as api,
        api.client(secret) as client,
    ):
        pipe.stall()
        asking = threads.submit(client.get, "/v1/files")
        in_flight = "\nmillrace_api_requests_in_flight 2.0"  # that one and the look itself
        until(lambda: in_flight in client.get("/metrics").text)
        began_s = time.monotonic()
        api.process.terminate()
        assert api.process.wait(15) == 0, api.log.read_text()
        assert time.monotonic() - began_s < ENDS_S_MAX
        assert asking.result().status_code == 503
