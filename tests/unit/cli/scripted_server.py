"""An HTTP server that sends scripted answers and records the requests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from openai.types import Batch
from typer.testing import CliRunner, Result

from cli.main import app


@dataclass(frozen=True)
class Answer:
    """One answer; a body that is not bytes is sent as JSON."""

    body: Any
    status: int = 200
    kind: str = "application/json"


@dataclass
class Server:
    """The URL of the server and its requests so far."""

    url: str = ""
    seen: list[str] = field(default_factory=list)  # method and path
    headers: list[dict[str, str]] = field(default_factory=list)  # lower case
    bodies: list[bytes] = field(default_factory=list)


@contextmanager
def serving(*answers: Answer) -> Iterator[Server]:
    """Send the answers in turn and repeat the last one."""
    server = Server()

    class Handler(QuietHandler):
        def answer(self) -> None:
            server.bodies.append(self.rfile.read(int(self.headers.get("content-length", 0))))
            answer = answers[min(len(server.seen), len(answers) - 1)]
            server.seen.append(f"{self.command} {self.path}")
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            is_raw = isinstance(answer.body, bytes)
            body = answer.body if is_raw else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            if answer.kind:
                self.send_header("content-type", answer.kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815  names of the base class

    with listening(Handler) as server.url:
        yield server


def millrace(url: str, *arguments: str, stdin: bytes = b"") -> Result:
    """Run a user command against the server at `url`."""
    env = {"MILLRACE_URL": url, "MILLRACE_KEY": "sk-1"}
    return CliRunner().invoke(app, list(arguments), env=env, input=stdin)


class QuietHandler(BaseHTTPRequestHandler):
    """A request handler that does not log."""

    def log_message(self, *_: object) -> None:
        """Do not log."""


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve with `handler` on a free port and yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def batch(status: str = "in_progress", **fields: Any) -> Batch:
    """Return a batch object; `fields` replace or add some."""
    sent = {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/embeddings",
        "input_file_id": "file-1",
        "completion_window": "24h",
        "created_at": 0,
        "status": status,
        "request_counts": {"total": 10, "completed": 4, "failed": 1},
    }
    return Batch.model_validate(sent | fields)
