"""Goal: ending a connection ends the served request and the pipelined ones."""

from types import SimpleNamespace
from typing import Any

import pytest

from api.http.client_connection import ClientConnection


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
