"""Runs a `millrace` command in this process, and serves HTTP to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from typer.testing import CliRunner, Result

from cli.main import app


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
