"""A stand-in of the model hub: its HTTP API for one repository, and the host of its large files."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
LARGE_BYTES = 1024
"""Files from this size on are kept by LFS, on another host."""


@dataclass
class HubRequest:
    """A request that arrived."""

    host: str  # "hub" or "files"
    path: str
    range: str | None
    authorization: str | None


@dataclass
class ModelHub:
    """One repository; tests set what is wrong with it."""

    files: dict[str, bytes]
    repository: str = "org/tiny"
    revisions: tuple[str, ...] = ("main", COMMIT)
    error_code: str | None = None  # of every answer, such as GatedRepo
    error_status: int = 403
    stated: dict[str, dict[str, Any]] = field(default_factory=dict)  # instead of what is true
    extra_siblings: list[dict[str, Any]] = field(default_factory=list)
    breaks: dict[str, list[int]] = field(default_factory=dict)  # bytes of the next answers
    ignores_ranges: bool = False
    statuses: list[int] = field(default_factory=list)  # of the next answers with large files
    requests: list[HubRequest] = field(default_factory=list)
    url: str = ""
    files_url: str = ""

    def info(self) -> dict[str, Any]:
        """Return the answer to a request for the model's metadata."""
        siblings = [self.stated.get(p) or self.sibling(p, data) for p, data in self.files.items()]
        return {
            "id": self.repository,
            "sha": COMMIT,
            "tags": [],
            "siblings": siblings + self.extra_siblings,
        }

    def sibling(self, path: str, data: bytes) -> dict[str, Any]:
        """Return how the hub lists a file."""
        blob = hashlib.sha1(b"blob %d\x00" % len(data) + data).hexdigest()
        sibling = {"rfilename": path, "size": len(data), "blobId": blob}
        if len(data) >= LARGE_BYTES:
            digest = hashlib.sha256(data).hexdigest()
            sibling["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
        return sibling


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ModelHub
    host: str

    def log_message(self, *_: Any) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        headers = self.headers
        hub.requests.append(
            HubRequest(self.host, path, headers.get("Range"), headers.get("Authorization"))
        )
        if self.host == "files":
            self._send_file(path.removeprefix("/lfs/"))
        elif hub.error_code is not None:
            self._send(hub.error_status, b"{}", {"X-Error-Code": hub.error_code})
        elif path.startswith("/api/models/"):
            self._send_info(path.removeprefix("/api/models/"))
        else:
            _, _, name = path.partition(f"/resolve/{COMMIT}/")
            if len(hub.files[name]) >= LARGE_BYTES:
                location = {"Location": f"{hub.files_url}/lfs/{name}"}
                self._send(302, b"", location | {"X-Linked-Etag": '"etag"'})
            else:
                self._send_file(name)

    def _send_info(self, name: str) -> None:
        repository, _, revision = name.partition("/revision/")
        if repository != self.hub.repository:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision and revision not in self.hub.revisions:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send(200, json.dumps(self.hub.info()).encode(), {})

    def _send_file(self, name: str) -> None:
        hub, data = self.hub, self.hub.files[name]
        if self.host == "files" and hub.statuses:
            self._send(hub.statuses.pop(0), b"", {})
            return
        status, headers, offset = 200, {}, 0
        asked = self.headers.get("Range")
        if asked and not hub.ignores_ranges:
            offset = int(asked.removeprefix("bytes=").removesuffix("-"))
            status = 206
            headers["Content-Range"] = f"bytes {offset}-{len(data) - 1}/{len(data)}"
        breaks = hub.breaks.get(name)
        self._send(status, data[offset:], headers, cut=breaks.pop(0) if breaks else None)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")  # no connection outlives the server
        self.end_headers()
        self.wfile.write(body[:cut])


@contextmanager
def serve_hub(hub: ModelHub) -> Iterator[ModelHub]:
    """Serve a hub and its host of large files on two ports of this machine."""
    servers = []
    for host in ("hub", "files"):
        handler = type("Handler", (_Handler,), {"hub": hub, "host": host})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
    hub.url, hub.files_url = (f"http://127.0.0.1:{s.server_address[1]}" for s in servers)
    threads = [Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
