"""A TCP proxy to Postgres that a test can stall, interrupt and restore."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

_SLICE_S = 0.1


class Pipe:
    """Forwards connections; see the three verbs."""

    def __init__(self, target: sa.URL) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_SLICE_S)
        self._flows = threading.Event()
        self._flows.set()
        self._closed = threading.Event()
        self._refuses = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """The URL of the database through this pipe."""
        port = self._listener.getsockname()[1]
        through = self._target.set(host="127.0.0.1", port=port, query={})
        return through.render_as_string(hide_password=False)

    def stall(self) -> None:
        """Let connections open and nothing through: a black hole."""
        self._flows.clear()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._refuses = True
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let everything through again."""
        self._refuses = False
        self._flows.set()

    def close(self) -> None:
        """End every thread."""
        self._closed.set()
        self.cut()
        self._flows.set()
        for thread in self._threads:
            thread.join()
        for end in [self._listener, *self._sockets]:
            end.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            if self._refuses:
                client.close()
                continue
            server = self._connect()
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._forward, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def _connect(self) -> socket.socket:
        folder = self._target.query.get("host")
        port = self._target.port or 5432
        if folder is None:
            return socket.create_connection((self._target.host or "127.0.0.1", port))
        assert isinstance(folder, str)
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(Path(folder) / f".s.PGSQL.{self._target.query.get('port', port)}"))
        return server

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@contextmanager
def open_pipe(database_url: str) -> Iterator[Pipe]:
    """Open a pipe to a database; no thread outlives the block."""
    pipe = Pipe(sa.make_url(database_url))
    try:
        yield pipe
    finally:
        pipe.close()
