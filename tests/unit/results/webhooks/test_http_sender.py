"""Goal: a response head in time counts; a lack of open files is no failure of the receiver."""

import asyncio
import errno
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from core.runtime.open_files import ResourceExhaustedError, is_resource_exhaustion
from results.webhooks.delivery import http_sender
from results.webhooks.delivery.http_sender import HttpSender, ReceiverResponse
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.name_resolution import AddressRefusedError, allowed_addresses
from results.webhooks.endpoints.receiver_urls import ReceiverUrl, parse_url

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"


async def looked_up(*addresses: str) -> list[str]:
    return list(addresses)


def make_poster(timeout_s: float) -> HttpSender:
    return HttpSender(AddressPolicy(allow_private=True), ssl.create_default_context(), timeout_s)


@asynccontextmanager
async def answering(said: bytes) -> AsyncIterator[ReceiverUrl]:
    """A receiver that sends a response and keeps the connection open."""
    open_ones: list[asyncio.StreamWriter] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)
        writer.write(said)
        await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield parse_url(f"http://127.0.0.1:{port}/", allow_private=True)
    finally:
        server.close()
        for writer in open_ones:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def test_endless_body_does_not_delay_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sender, "_DRAIN_S", 2.5)
    async with answering(HEAD + b"so") as url:
        answer = await make_poster(2.0).post(url, looked_up("127.0.0.1"), {}, b"{}")
    assert answer == ReceiverResponse(200, None)


async def test_unresponsive_address_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected, asked = http_sender._connected, []

    async def swallowed(address: str, port: int) -> socket.socket:
        asked.append(address)
        if address != "127.0.0.1":
            await asyncio.Event().wait()
        return await connected(address, port)

    monkeypatch.setattr(http_sender, "_connected", swallowed)
    monkeypatch.setattr(http_sender, "_CONNECT_S_MAX", 0.01)
    async with answering(HEAD + b"something") as url:
        found = looked_up("10.0.0.1", "10.0.0.2", "127.0.0.1")
        answer = await make_poster(20.0).post(url, found, {}, b"{}")
    assert answer == ReceiverResponse(200, None)
    assert asked == ["10.0.0.1", "10.0.0.2", "127.0.0.1"]


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
