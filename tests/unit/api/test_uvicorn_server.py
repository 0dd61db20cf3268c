"""Goal: the use of uvicorn's private parts holds, and ends every request of a connection."""

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.http.client_connection import ClientConnection
from api.http.uvicorn_server import UVICORN_VERSION, HttpProtocol, http_server
from api.settings import ApiSettings


def test_the_private_parts_were_checked_for_the_installed_version() -> None:
    """After an upgrade: read the parts named at UVICORN_VERSION again, then change it."""
    assert uvicorn.__version__ == UVICORN_VERSION


def test_overridden_methods_exist() -> None:
    overridden = {"_start_asgi_task", "on_response_complete", "timeout_keep_alive_handler"}
    assert overridden | {"send_400_response"} <= vars(HttpProtocol).keys()
    for name in (*overridden, "send_400_response", "_unset_keepalive_if_required"):
        assert callable(getattr(HttpToolsProtocol, name))
    assert callable(RequestResponseCycle.send)


async def nothing(_: Scope, __: Receive, ___: Send) -> None:
    pass


def test_a_signal_during_the_start_is_not_lost() -> None:
    stop = threading.Event()
    stop.set()
    server = http_server(nothing, ApiSettings(shutdown_grace_s=1), stop)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=server.run, args=([listener],))
        serving.start()
        serving.join(20)
        has_ended = not serving.is_alive()
        server.should_exit = True
        serving.join(20)
    assert has_ended


def cycle(version: str = "1.1") -> Any:
    return SimpleNamespace(disconnected=False, scope={"http_version": version})


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_last_bytes_belong_to_the_served_request(version: str) -> None:
    written: list[bytes] = []
    transport = SimpleNamespace(write=written.append, close=lambda: None, abort=lambda: None)
    loop = SimpleNamespace(call_later=lambda *_: None)
    served, newest = cycle(version), cycle()
    protocol: Any = SimpleNamespace(
        cycle=newest, pipeline=[(newest, None)], transport=transport, loop=loop
    )
    connection = ClientConnection(protocol)
    connection.set_served(served)
    connection.write_last_and_close(b"last")
    assert written == [b"last" if version == "1.0" else b"4\r\nlast\r\n0\r\n\r\n"]
    assert served.disconnected
    assert newest.disconnected


def test_nothing_is_written_after_an_abort() -> None:
    aborted: list[bool] = []
    served, ahead = cycle(), cycle()
    transport = SimpleNamespace(abort=lambda: aborted.append(True))
    protocol: Any = SimpleNamespace(cycle=ahead, pipeline=[(ahead, None)], transport=transport)
    connection = ClientConnection(protocol)
    connection.set_served(served)
    connection.abort()
    assert (served.disconnected, ahead.disconnected, aborted) == (True, True, [True])
