"""Goal: ten thousand connections that disconnect or send half a head leak nothing in the API."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pytest

from tests.e2e.test_long_calls import GROWTH_BYTES_MAX, growth_bytes
from tests.support.stacks import Stack, running_stack
from tests.support.until import STEP_S_MAX, until

CLIENTS = 10_000
HALF_OPEN = 500
HEAD_TIMEOUT_S = "2"


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, module_env: pytest.MonkeyPatch
) -> Iterator[Stack]:
    module_env.setenv("MILLRACE_API_HEAD_TIMEOUT_S", HEAD_TIMEOUT_S)
    options = ("--simulated-latency-ms", "3000", "--simulated-token-ms", "100")
    with running_stack(tmp_path_factory.mktemp("connections"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def module_env() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.timeout(600)
def test_ten_thousand_disconnects_leak_no_memory(stack: Stack) -> None:
    assert growth_bytes(stack, CLIENTS) < GROWTH_BYTES_MAX


@pytest.mark.timeout(120)
def test_connections_with_half_a_head_are_closed(stack: Stack) -> None:
    pid = stack.pid("api")
    assert pid is not None
    api = psutil.Process(pid)
    before = len(api.net_connections())
    address = urlsplit(stack.url)
    half_open = []
    for number in range(HALF_OPEN):
        connection = socket.create_connection((address.hostname or "", address.port or 80), 20)
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: t"[: number % 40])
        half_open.append(connection)
    until(
        lambda: len(api.net_connections()) <= before + 10,
        "half-open connections to be closed",
        STEP_S_MAX,
    )
    for connection in half_open:
        connection.close()
