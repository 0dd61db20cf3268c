"""A server with scripted answers, which records its requests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One answer; a body of another kind than bytes is sent as JSON."""

    body: Any
    status: int = 200
    kind: str = "application/json"


@dataclass
class Server:
    """Where it listens, and what it was asked so far."""

    url: str = ""
    seen: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)  # of each request, lower case
    bodies: list[bytes] = field(default_factory=list)


@contextmanager
def serving(*answers: Answer) -> Iterator[Server]:
    """Serve the answers in turn, the last one again and again."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            server.bodies.append(self.rfile.read(int(self.headers.get("content-length", 0))))
            answer = answers[min(len(server.seen), len(answers) - 1)]
            server.seen.append(f"{self.command} {self.path}")
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            body = (
                answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            )
            self.send_response(answer.status)
            if answer.kind:
                self.send_header("content-type", answer.kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815  names of the base class

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_address[1]}"
        Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown()
