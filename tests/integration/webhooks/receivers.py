"""Receivers on real sockets, good and hostile, that record their requests."""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REQUEST_S_MAX = 20.0


@dataclass(frozen=True)
class Request:
    """One received request."""

    line: str
    headers: dict[str, str]
    body: bytes
    at_s: float


Answer = Callable[[socket.socket, int], None]
"""Answers the n-th request, from 0, on its connection."""


@dataclass
class Receiver:
    """A server that answers every request in the same way."""

    answer: Answer
    listener: socket.socket
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    tls: ssl.SSLContext | None = None

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=b"

    @property
    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.requests]

    def serve(self) -> None:
        while not self.stopping.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(REQUEST_S_MAX)
        with connection, suppress(OSError):
            if self.tls is None:
                self._exchange(connection)
                return
            wrapped = self.tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
            with wrapped as encrypted:
                encrypted.do_handshake()
                self._exchange(encrypted)

    def _exchange(self, connection: socket.socket) -> None:
        request = read_request(connection)
        number = len(self.requests)
        self.requests.append(request)
        self.answer(connection, number)


@contextmanager
def receiving(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver for a block."""
    receiver = Receiver(answer, socket.create_server(("127.0.0.1", 0), backlog=256), tls=tls)
    thread = threading.Thread(target=receiver.serve, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.stopping.set()
        with suppress(OSError):
            receiver.listener.shutdown(socket.SHUT_RDWR)
        receiver.listener.close()
        thread.join(20)


def read_request(connection: socket.socket) -> Request:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise OSError("cut off")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    line, *fields = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return Request(line, headers, body, time.monotonic())


def ok(connection: socket.socket, _: int) -> None:
    connection.sendall(OK)


def status(code: int, *fields: str) -> Answer:
    head = "\r\n".join([f"HTTP/1.1 {code} Said", *fields, "Content-Length: 0", "", ""]).encode()

    def answer(connection: socket.socket, _: int) -> None:
        connection.sendall(head)

    return answer


def failing_first(count: int, code: int = 500) -> Answer:
    bad = status(code)

    def answer(connection: socket.socket, number: int) -> None:
        (bad if number < count else ok)(connection, number)

    return answer


def silent(connection: socket.socket, _: int) -> None:
    """Keep the connection open without a response."""
    connection.settimeout(60)
    connection.recv(1)


def dripping_head(connection: socket.socket, _: int) -> None:
    """Send the head one byte at a time, forever."""
    for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def dripping_body(connection: socket.socket, _: int) -> None:
    """Send a valid head, then the body one byte at a time."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


def reset_before_the_answer(connection: socket.socket, _: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def reset_in_the_answer(connection: socket.socket, _: int) -> None:
    connection.sendall(b"HTTP/1.1 200 O")
    time.sleep(0.05)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Flood:
    """Sends an endless response and counts the bytes that were read."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.sent_bytes = 0

    def __call__(self, connection: socket.socket, _: int) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        connection.sendall(self._head)
        piece = b"x" * 65536
        with suppress(OSError):
            while self.sent_bytes < 2**30:
                self.sent_bytes += connection.send(piece)


def garbage(connection: socket.socket, _: int) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n\r\n" * 10)
