"""Goal: a lack of open files is distinguished from receiver failures, and checked at start."""

import errno
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.open_files import ResourceExhaustedError, is_resource_exhaustion
from results.webhooks.delivery.http_sender import HttpSender
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.name_resolution import AddressRefusedError, allowed_addresses
from results.webhooks.endpoints.receiver_urls import parse_url

ROOT = Path(__file__).parents[4]
URL = parse_url("http://127.0.0.1:9/", allow_private=True)


@contextmanager
def no_file_left() -> Iterator[None]:
    with socket.socket() as probe:
        lowest_free = probe.fileno()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def addresses() -> list[str]:
    return ["127.0.0.1"]


async def test_missing_open_files_are_no_failure_of_the_receiver() -> None:
    tls = ssl.create_default_context()
    poster = HttpSender(AddressPolicy(allow_private=True), tls, timeout_s=5.0)
    with no_file_left(), pytest.raises(ResourceExhaustedError):
        await poster.post(URL, addresses(), {}, b"")


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (OSError(errno.EMFILE, "x"), ResourceExhaustedError),
        (OSError(errno.ENFILE, "x"), ResourceExhaustedError),
        (OSError(errno.ENOMEM, "x"), ResourceExhaustedError),
        (socket.gaierror(socket.EAI_MEMORY, "x"), ResourceExhaustedError),
        (socket.gaierror(socket.EAI_NONAME, "x"), AddressRefusedError),
        (socket.gaierror(socket.EAI_AGAIN, "x"), AddressRefusedError),
        (UnicodeError("x"), AddressRefusedError),
    ],
)
async def test_look_up_shortage_refuses_no_address(
    failure: Exception, raised: type[Exception]
) -> None:
    async def looked_up() -> list[str]:
        raise failure

    with pytest.raises(raised):
        await allowed_addresses(looked_up(), AddressPolicy())


def test_connection_errors_are_no_shortage() -> None:
    assert not any(
        is_resource_exhaustion(OSError(number, "x"))
        for number in (errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ETIMEDOUT)
    )


LIMITED = """
import resource
from core.errors import SettingsError
from results.webhooks.__main__ import check_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
check_open_files(400, 100)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
try:
    check_open_files(800, 100)
except SettingsError as error:
    print(error)
"""


def test_open_file_limit_is_raised_or_the_role_refuses_to_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    limits, refusal = done.stdout.splitlines()
    assert limits == "856 1000"
    assert refusal.startswith("MILLRACE_WEBHOOKS_SLOTS_MAX=800 needs 1256 open files and 1000")
