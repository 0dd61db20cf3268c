"""HTTP written by hand, for requests that no client library sends."""

import json
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.integration.api.sites import Site

BOUNDARY = "frontier"
WAIT_S_MAX = 40.0


@dataclass(frozen=True)
class Answer:
    """What came back until the server closed or the answer was whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, str | None]:
        """Return the error in the envelope."""
        assert len(self.headers["x-request-id"]) == len("req_") + 32
        error: dict[str, str | None] = json.loads(self.body)["error"]
        return error


def connect(site: Site) -> socket.socket:
    """Open a connection to the API."""
    address = urlsplit(site.url)
    assert address.hostname
    return socket.create_connection((address.hostname, address.port or 80), WAIT_S_MAX)


def head(site: Site, path: str = "/v1/files", method: str = "POST", **headers: str) -> bytes:
    """Return a request head with a key; underscores in names become dashes."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: test",
        f"Authorization: Bearer {site.key.secret}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def json_post(site: Site, path: str, body: bytes, **headers: str) -> bytes:
    """Return a request with its length, unless `headers` say how long it is."""
    framed = {"Content_Length", "Transfer_Encoding"} & headers.keys()
    length = {} if framed else {"Content_Length": str(len(body))}
    return head(site, path, Content_Type="application/json", **length, **headers) + body


def form_head(site: Site, **headers: str) -> bytes:
    """Return the head of an upload, chunked unless `headers` say a length."""
    kind = {"Content_Type": f"multipart/form-data; boundary={BOUNDARY}"}
    length = {} if "Content_Length" in headers else {"Transfer_Encoding": "chunked"}
    return head(site, **kind, **length, **headers)


def chunk(data: bytes) -> bytes:
    """Return one chunk of a body of unknown length."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def part(name: str, value: bytes, extra: str = "") -> bytes:
    """Return one part of a form."""
    lines = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return lines.encode() + value + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def read_answer(connection: socket.socket) -> Answer:
    """Read one answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(connection)
    top, _, body = received.partition(b"\r\n\r\n")
    status, *lines = top.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += _more(connection)
    return Answer(int(status.split()[1]), headers, body)


def send_form(site: Site, content: bytes, **headers: str) -> Answer:
    """Send a form as it is and return the answer."""
    with connect(site) as connection:
        body = chunk(content) if content else b""
        connection.sendall(form_head(site, **headers) + body + b"0\r\n\r\n")
        return read_answer(connection)


def closes(connection: socket.socket) -> bool:
    """Whether the server closes the connection, in time."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    assert data, "the server closed the connection before its answer was whole"
    return data
