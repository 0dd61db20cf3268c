"""A proxy that loses the first response to each POST, after the server has processed it."""

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_HOP_HEADERS = {"connection", "content-length", "host", "transfer-encoding"}


@contextmanager
def lossy_proxy(target: str) -> Iterator[str]:
    """Serve a loopback address in front of `target` for a block."""

    class Handler(_Handler):
        address = target

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    """Each connection carries one request."""

    address: str

    def do_POST(self) -> None:
        """Forward a request; respond unless it is the client's first attempt."""
        content = self.rfile.read(int(self.headers["content-length"]))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_HEADERS}
        status, answered, body = _posted(self.address + self.path, content, headers)
        if self.headers["x-stainless-retry-count"] == "0":
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        for name in ("content-type", "idempotent-replayed"):
            if value := answered[name]:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing: the process's output is its report."""


def _posted(url: str, content: bytes, headers: dict[str, str]) -> tuple[int, Message, bytes]:
    request = urllib.request.Request(url, content, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.headers, refusal.read()
