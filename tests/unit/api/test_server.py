"""Goal: a signal during the start stops the process as soon as it serves."""

import socket
import threading

from starlette.types import Receive, Scope, Send

from api.http.uvicorn_server import http_server
from api.settings import ApiSettings


async def nothing(_: Scope, __: Receive, ___: Send) -> None:
    pass


def test_a_signal_during_the_start_is_not_lost() -> None:
    stop = threading.Event()
    stop.set()
    server = http_server(nothing, ApiSettings(shutdown_grace_s=1), stop)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=server.run, args=([listener],))
        serving.start()
        serving.join(10)
        has_ended = not serving.is_alive()
        server.should_exit = True
        serving.join(10)
    assert has_ended
