"""An HTTP server that receives webhooks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    """One message."""

    body: str
    headers: dict[str, str]


@contextmanager
def receiver() -> Iterator[tuple[str, list[Received]]]:
    """Yield the address and the list of messages received so far."""
    inbox: list[Received] = []

    class Handler(_Handler):
        received = inbox

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", inbox
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    received: list[Received]

    def do_POST(self) -> None:
        """Receive a message."""
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.received.append(Received(body, dict(self.headers.items())))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing: the process's output is its report."""
