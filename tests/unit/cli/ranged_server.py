"""A server of one file with range requests, which interrupts answers as a test plans."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.unit.cli.commands import QuietHandler, listening

TAG = '"0a"'


@dataclass
class Plan:
    """The file and the faults of its server."""

    content: bytes
    cuts: list[int] = field(default_factory=list)  # bytes of each interrupted answer
    statuses: list[int] = field(default_factory=list)  # of the errors before the first answer
    is_ranged: bool = True
    shift: int = 0  # from the requested to the sent offset
    url: str = ""
    ranges: list[tuple[str | None, str | None]] = field(default_factory=list)  # range, if-range


@contextmanager
def serving_file(plan: Plan) -> Iterator[Plan]:
    """Serve the file of a plan under any id."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802  name of the base class
            if not self.path.endswith("/content"):
                shown = {"id": "file-1", "object": "file", "bytes": len(plan.content)}
                self._answer(200, "application/json", json.dumps(shown).encode())
                return
            if plan.statuses:
                self._answer(plan.statuses.pop(0), "application/json", b"{}")
                return
            requested = self.headers["range"], self.headers["if-range"]
            plan.ranges.append(requested)
            is_part = plan.is_ranged and requested[0] is not None and requested[1] == TAG
            begin = int(requested[0].removeprefix("bytes=").rstrip("-")) if is_part else 0
            begin += plan.shift if is_part else 0
            self._answer(206 if is_part else 200, "binary/any", plan.content[begin:], may_cut=True)

        def _answer(self, status: int, kind: str, body: bytes, *, may_cut: bool = False) -> None:
            self.send_response(status)
            if status == 206:
                size = len(plan.content)
                self.send_header("content-range", f"bytes {size - len(body)}-{size - 1}/{size}")
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", TAG)
            self.end_headers()
            self.wfile.write(body[: plan.cuts.pop(0)] if may_cut and plan.cuts else body)

    with listening(Handler) as plan.url:
        yield plan
