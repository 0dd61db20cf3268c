"""An HTTP server that sends scripted answers and records the requests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.unit.cli.commands import QuietHandler, listening


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
