"""A server of one file with ranges, which disconnects at scripted offsets."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

TAG = '"0a"'


@dataclass
class Plan:
    """What it serves, and how."""

    content: bytes
    cuts: list[int] = field(default_factory=list)  # bytes of each answer until it goes well
    statuses: list[int] = field(default_factory=list)  # refusals before the first answer
    is_ranged: bool = True
    shift: int = 0  # how far behind what was asked for a part begins
    url: str = ""
    ranges: list[tuple[str | None, str | None]] = field(default_factory=list)  # range, if-range


@contextmanager
def serving_file(plan: Plan) -> Iterator[Plan]:
    """Serve the file of a plan under any id."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.endswith("/content"):
                shown = {"id": "file-1", "object": "file", "bytes": len(plan.content)}
                self._answer(200, "application/json", json.dumps(shown).encode())
                return
            if plan.statuses:
                self._answer(plan.statuses.pop(0), "application/json", b"{}")
                return
            asked = self.headers["range"], self.headers["if-range"]
            plan.ranges.append(asked)
            is_part = plan.is_ranged and asked[0] is not None and asked[1] == TAG
            begin = int(asked[0].removeprefix("bytes=").rstrip("-")) if is_part else 0
            begin += plan.shift if is_part else 0
            self._answer(206 if is_part else 200, "binary/any", plan.content[begin:], cut=True)

        def _answer(self, status: int, kind: str, body: bytes, *, cut: bool = False) -> None:
            self.send_response(status)
            if status == 206:
                size = len(plan.content)
                self.send_header("content-range", f"bytes {size - len(body)}-{size - 1}/{size}")
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", TAG)
            self.end_headers()
            self.wfile.write(body[: plan.cuts.pop(0)] if cut and plan.cuts else body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        plan.url = f"http://127.0.0.1:{listening.server_address[1]}"
        Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield plan
        finally:
            listening.shutdown()
