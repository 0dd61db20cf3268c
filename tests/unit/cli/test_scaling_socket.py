"""Goal: whatever a client sends, the socket answers or closes, and stays usable for the others."""

import json
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from autoscaler.actuators.actuator import PoolOrder
from autoscaler.actuators.socket_messages import LINE_BYTES_MAX, socket_address
from cli.stack.scaling_socket import CONNECTIONS_MAX, WAITING_MAX, ScalingSocket
from tests.support.scaling_sockets import RecordedPools, carried_out, scaling_socket
from tests.support.until import until

ORDER = {"pool": "pool", "epoch": 1, "sequence": 1, "kinds": [{"replicas": 2}]}
APPLY = json.dumps({"action": "apply", "order": ORDER}).encode() + b"\n"
OBSERVE = b'{"action":"observe","pool":"pool"}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scaling.sock"


@pytest.fixture
def pools() -> RecordedPools:
    return RecordedPools()


@pytest.fixture
def served(path: Path, pools: RecordedPools) -> Iterator[ScalingSocket]:
    with scaling_socket(path, pools) as server, carried_out(server.answer_waiting):
        yield server


def connection(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    with socket_address(path) as address:
        client.connect(address)
    return client


def answered(path: Path, *parts: bytes) -> dict[str, Any]:
    with connection(path) as client:
        with suppress(BrokenPipeError):  # refused before it was read
            for part in parts:
                client.sendall(part)
        return received(client)


def received(client: socket.socket) -> dict[str, Any]:
    with client.makefile("rb") as file:
        answer: dict[str, Any] = json.loads(file.readline())
        with suppress(ConnectionResetError):  # what was sent has not been read
            assert file.read() == b""  # one request a connection
        return answer


def test_an_order_is_carried_out_by_the_loop_and_answered(path: Path, pools: RecordedPools) -> None:
    with scaling_socket(path, pools) as server, carried_out(server.answer_waiting) as thread:
        answer = answered(path, APPLY)

        assert (answer["epoch"], answer["kinds"][0]["replicas"]) == (1, 2)
        assert answered(path, OBSERVE) == answer
        assert pools.threads == {thread}


def test_a_line_may_come_in_parts(served: ScalingSocket, path: Path) -> None:
    assert answered(path, APPLY[:5], APPLY[5:40], APPLY[40:])["epoch"] == 1


def test_a_refusal_has_its_code_and_a_sentence(served: ScalingSocket, path: Path) -> None:
    answered(path, APPLY.replace(b'"epoch": 1', b'"epoch": 7'))

    refused = answered(path, APPLY)
    assert refused == {"error": "stale_epoch", "message": "The pool follows a newer epoch."}
    unknown = answered(path, b'{"action":"observe","pool":"other"}\n')
    assert unknown["error"] == "unknown_pool"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff\xfe\x80",
        b"GET / HTTP/1.1",
        b"null",
        b"[]",
        b"{}",
        b'{"action":"apply"}',
        b'{"action":"delete","pool":"pool"}',
        b'{"action":"observe","pool":5}',
        b'{"action":"observe","pool":""}',
        b'{"action":"observe","pool":"' + b"x" * 101 + b'"}',
        b'{"action":"observe","pool":"\xff"}',
        APPLY.replace(b'"epoch": 1', b'"epoch": "1"'),
        APPLY.replace(b'"epoch": 1', b'"epoch": 1.5'),
        APPLY.replace(b'{"replicas": 2}', b'{"replicas": true}'),
        APPLY.replace(b'{"replicas": 2}', b'{"replicas": NaN}'),
        APPLY.replace(b'[{"replicas": 2}]', b"2"),
        b"[" * 60_000,
    ],
    ids=lambda line: repr(line[:40]),
)
def test_what_is_no_request_is_refused(
    served: ScalingSocket, path: Path, pools: RecordedPools, line: bytes
) -> None:
    refused = answered(path, line.rstrip(b"\n") + b"\n")

    assert refused == {"error": "invalid_request", "message": "The line is no request in JSON."}
    assert pools.orders == []
    assert answered(path, OBSERVE)["epoch"] == 0


@pytest.mark.parametrize("field", ["epoch", "sequence", "replicas", "standby"])
@pytest.mark.parametrize("number", [-1, 2**63, 10**400], ids=["negative", "large", "huge"])
def test_an_absurd_number_is_refused(
    served: ScalingSocket, path: Path, pools: RecordedPools, field: str, number: int
) -> None:
    order = {**ORDER, "kinds": [{"replicas": number}]} if field == "replicas" else ORDER
    order = order if field == "replicas" else {**order, field: number}

    refused = answered(path, json.dumps({"action": "apply", "order": order}).encode() + b"\n")

    assert refused["error"] == "invalid_request"
    assert pools.orders == []


def test_a_line_that_is_too_long_is_refused(served: ScalingSocket, path: Path) -> None:
    with connection(path) as client:
        client.sendall(b" " * LINE_BYTES_MAX)
        assert "longer than 65536 bytes" in received(client)["message"]
    assert answered(path, OBSERVE)["epoch"] == 0


def test_a_client_that_ends_within_its_line_is_refused(served: ScalingSocket, path: Path) -> None:
    with connection(path) as client:
        client.sendall(APPLY[:-1])
        client.shutdown(socket.SHUT_WR)
        assert received(client)["error"] == "invalid_request"


def test_a_slow_client_is_refused_and_delays_no_other(path: Path, pools: RecordedPools) -> None:
    with (
        scaling_socket(path, pools, read_s_max=0.5) as server,
        carried_out(server.answer_waiting),
        connection(path) as slow,
    ):
        slow.sendall(b"{")
        assert answered(path, OBSERVE)["epoch"] == 0
        assert "within 0.5 s" in received(slow)["message"]


def test_a_request_whose_client_was_told_of_the_timeout_is_not_carried_out(
    path: Path, pools: RecordedPools
) -> None:
    with scaling_socket(path, pools, answer_s_max=0.3) as server:
        assert answered(path, APPLY)["error"] == "actuator_timeout"
        server.answer_waiting()

        assert pools.orders == []


def test_of_100_connections_each_is_answered_or_refused(
    served: ScalingSocket, path: Path, pools: RecordedPools
) -> None:
    with ThreadPoolExecutor(100) as threads:
        answers = list(threads.map(lambda _: answered(path, APPLY), range(100)))

    refused = [answer for answer in answers if "error" in answer]
    assert {answer["error"] for answer in refused} <= {"busy"}
    assert len(refused) < 100
    assert len(pools.orders) == 100 - len(refused)
    assert answered(path, OBSERVE)["epoch"] == 1


def test_silent_connections_are_bounded_and_then_free(path: Path, pools: RecordedPools) -> None:
    with (
        scaling_socket(path, pools, read_s_max=1.0) as server,
        carried_out(server.answer_waiting),
        ExitStack() as clients,
    ):
        for _ in range(CONNECTIONS_MAX):
            clients.enter_context(connection(path))
        assert answered(path, OBSERVE)["error"] == "busy"

        until(lambda: "error" not in answered(path, OBSERVE))


def test_requests_that_wait_are_bounded(path: Path, pools: RecordedPools) -> None:
    with scaling_socket(path, pools) as server, ExitStack() as stack:
        clients = [stack.enter_context(connection(path)) for _ in range(WAITING_MAX)]
        for client in clients:
            client.sendall(APPLY)
        until(lambda: answered_busy(path))

        server.answer_waiting()
        assert [received(client)["epoch"] for client in clients] == [1] * WAITING_MAX
        assert len(pools.orders) == WAITING_MAX


def answered_busy(path: Path) -> bool:
    """Whether the queue is full. A request that is queued instead is given up and cancelled."""
    with connection(path) as client:
        client.sendall(OBSERVE)
        client.settimeout(0.2)
        try:
            return received(client) == {"error": "busy", "message": "16 requests wait already."}
        except TimeoutError:
            return False


def test_the_socket_belongs_to_its_owner_and_ends_with_the_stack(
    path: Path, pools: RecordedPools
) -> None:
    path.write_text("left by a killed stack")
    with scaling_socket(path, pools):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not path.exists()


def test_a_path_that_is_too_long_for_an_address_works(tmp_path: Path, pools: RecordedPools) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    with (
        scaling_socket(folder / "scaling.sock", pools) as server,
        carried_out(server.answer_waiting),
    ):
        assert answered(folder / "scaling.sock", APPLY)["epoch"] == 1


def test_a_stop_ends_connections_that_wait(path: Path, pools: RecordedPools) -> None:
    with ExitStack() as stack:
        with scaling_socket(path, pools) as server:
            client = stack.enter_context(connection(path))
            client.sendall(APPLY)
            until(lambda: server._waiting.qsize() == 1)
        assert client.recv(100) == b""
    assert pools.orders == []


def test_an_order_decodes_as_it_was_sent(
    served: ScalingSocket, path: Path, pools: RecordedPools
) -> None:
    line = json.dumps(
        {"action": "apply", "order": {**ORDER, "standby": 1, "removals": ["pool-host-1"]}}
    )
    answered(path, line.encode() + b"\n")

    (order,) = pools.orders
    assert isinstance(order, PoolOrder)
    assert (order.standby, order.removals) == (1, ("pool-host-1",))


@pytest.mark.parametrize("name", ["a\x00b", "A", "a b", "-a", "a" * 64, "a\n"])
@pytest.mark.parametrize("field", ["gpu_type", "zone"])
def test_a_kind_that_is_no_name_is_refused(
    path: Path, served: ScalingSocket, name: str, field: str
) -> None:
    """A null byte in a variable of a process once ended the stack."""
    order = {**ORDER, "kinds": [{field: name, "replicas": 1}]}
    line = json.dumps({"action": "apply", "order": order}).encode() + b"\n"
    assert answered(path, line)["error"] == "invalid_request"
    assert "error" not in answered(path, OBSERVE)


def test_an_order_that_fails_unexpectedly_gets_an_error(path: Path) -> None:
    class Broken(RecordedPools):
        def apply(self, order: PoolOrder) -> Any:
            raise ValueError

    with (
        scaling_socket(path, Broken()) as server,
        carried_out(server.answer_waiting),
    ):
        assert answered(path, APPLY)["error"] == "actuator_failed"
        assert "error" not in answered(path, OBSERVE)
