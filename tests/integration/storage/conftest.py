"""Fixtures of both object stores: a local folder, and S3 with a real server process."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import botocore.loaders
import pytest
from pydantic import SecretStr

from core.clock import SystemClock
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectStore
from storage.objects.s3_object_store import S3ObjectStore, s3_client
from storage.objects.settings import S3Settings
from tests.support.ports import free_port

READY_S_MAX = 30.0
PAGE_KEYS = 100
"""Number of keys in a page of a list; Amazon's has 1,000, which take 8 s of CPU to write."""


@pytest.fixture(scope="session", autouse=True)
def one_loader() -> Iterator[None]:
    """Load the description of S3 once: each client would take 70 ms of CPU for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", cache(botocore.loaders.create_loader))
        yield


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server that dies with this process, however it ends."""
    folder = tmp_path_factory.mktemp("s3")
    port = free_port(folder)
    endpoint = f"http://127.0.0.1:{port}"
    program = Path(__file__).with_name("s3_server.py")
    command = [sys.executable, str(program), str(port), str(os.getpid())]
    env = os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_KEYS)}
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=env, stdout=output, stderr=output) as server,
    ):
        try:
            wait_until_up(endpoint, server)
            yield endpoint
        finally:
            server.kill()


@pytest.fixture
def s3_settings(s3_endpoint: str) -> S3Settings:
    """A bucket of this test alone; parts of 5 MiB, the protocol's least."""
    settings = S3Settings(
        bucket=f"test-{uuid.uuid4().hex}",
        endpoint_url=s3_endpoint,
        access_key=SecretStr("test"),
        secret_key=SecretStr("test"),
        part_bytes=5 * 1024 * 1024,
    )
    client = s3_client(settings)
    client.create_bucket(Bucket=settings.bucket)
    client.close()
    return settings


@pytest.fixture
def local_store(tmp_path: Path) -> LocalObjectStore:
    """A store in an empty folder."""
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each kind of store in turn, empty."""
    if request.param == "local":
        local: LocalObjectStore = request.getfixturevalue("local_store")
        return local
    settings: S3Settings = request.getfixturevalue("s3_settings")
    return S3ObjectStore(settings, clock=SystemClock())


def wait_until_up(endpoint: str, server: "subprocess.Popen[bytes]") -> None:
    """Poll until the server answers."""
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the S3 server ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=1).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the S3 server did not come up")
