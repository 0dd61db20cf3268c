"""Goal: the call of a client that vanished is aborted, whether bytes flow or not."""

import ctypes
import socket
import struct
import time

import pytest

from api.http import uvicorn_server
from tests.integration.api.online_site import Online
from tests.integration.api.pool import PlayedPool, say_nothing
from topics.records.records import Chunk

NOTICED_S_MAX = 60
"""What docs/online.md says."""

QUICK = {
    socket.TCP_KEEPIDLE: 1,
    socket.TCP_KEEPINTVL: 1,
    socket.TCP_KEEPCNT: 2,
    socket.TCP_USER_TIMEOUT: 3000,
}
"""Values for the API's own options, so that its minute is three seconds."""

ATTACH_FILTER = 26  # SO_ATTACH_FILTER of socket(7), which Python does not name


def talk_on(pool: PlayedPool, chunk: Chunk) -> None:
    """Stream small pieces, far fewer than fill a buffer, until somebody stops it."""
    until_s = time.monotonic() + 30
    while not pool.aborted(chunk.job.job_id) and time.monotonic() < until_s:
        pool.reply(chunk, pieces=[b'{"x":1}'])
        time.sleep(0.1)


def vanish(connection: socket.socket) -> None:
    """Let the kernel drop whatever comes for it, unread and unacknowledged, as a dead host does."""
    take_nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HL", 1, ctypes.addressof(take_nothing))
    connection.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, program)


def test_probes_detect_a_silent_client_within_a_minute() -> None:
    options = {option: value for _, option, value in uvicorn_server._SOCKET_OPTIONS}
    probes_s = options[socket.TCP_KEEPINTVL] * options[socket.TCP_KEEPCNT]
    assert options[socket.SO_KEEPALIVE] == 1
    assert options[socket.TCP_KEEPIDLE] + probes_s <= NOTICED_S_MAX
    assert options[socket.TCP_USER_TIMEOUT] <= NOTICED_S_MAX * 1000


@pytest.mark.parametrize("stream", [False, True])
def test_a_vanished_client_aborts_its_call(
    online: Online, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    options = [
        (level, name, QUICK.get(name, v)) for level, name, v in uvicorn_server._SOCKET_OPTIONS
    ]
    monkeypatch.setattr(uvicorn_server, "_SOCKET_OPTIONS", tuple(options))
    online.pool.script = talk_on if stream else say_nothing
    with online.send({"stream": stream}) as connection:
        if stream:
            assert connection.recv(1 << 16)
        chunk = online.pool.only_chunk()
        vanish(connection)
        online.pool.wait_for(lambda: online.pool.aborted(chunk.job.job_id))
