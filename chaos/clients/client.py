"""API clients that record every attempt of every operation."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from chaos.checkers.states import TIMESTAMPS
from chaos.clients.history import Recorder
from chaos.errors import NotServedError

ENDPOINT: Final = "/v1/chat/completions"
CALL_S_MAX: Final = 15.0
PAUSE_S: Final = 0.2
READ_TRIES: Final = 20
_LINE: Final = msgspec.json.Decoder(dict[str, Any])
TERMINAL: Final = frozenset({"completed", "failed", "expired", "cancelled"})
RETRYABLE_STATUSES: Final = frozenset({409, 429, 500, 502, 503, 504, 507})
"""Statuses after which the same request may succeed; checkers count each 500 among them."""


def input_lines(
    count: int,
    model: str,
    texts: Mapping[int, str] | None = None,
    fields: Mapping[int, Mapping[str, object]] | None = None,
) -> bytes:
    """Return an input file of `count` items; `texts` and `fields` replace those of single items."""
    lines = []
    for number in range(count):
        text = (texts or {}).get(number, f"hello {number}")
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1 + number % 8,  # differs, so that swapped usage is visible
            **(fields or {}).get(number, {}),
        }
        line = {"custom_id": f"item-{number}", "method": "POST", "url": ENDPOINT, "body": body}
        lines.append(json.dumps(line))
    return ("\n".join(lines) + "\n").encode()


def job_body(file_id: str, **fields: object) -> dict[str, object]:
    """Return the body that creates a job of a file; `fields` are added."""
    standard = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    return {**standard, **fields}


Poll = Callable[[str], dict[str, Any] | None]
"""Reads a job once; returns None without a response."""


class CancelResponse(NamedTuple):
    """The response to a cancellation."""

    at_s: float  # when the response came, seconds since the epoch
    is_refused: bool  # correct only for a job that had ended by then


@dataclass(slots=True)
class Client:
    """One client of one or several API addresses, called round-robin."""

    name: str
    urls: Sequence[str]
    key: str
    recorder: Recorder
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=CALL_S_MAX))
    last_failure: str = ""  # the last transport error
    _call_count: int = 0

    def call(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **content: Any
    ) -> httpx.Response | None:
        """Send a request once; return None without a response: the outcome is then unknown."""
        self._call_count += 1
        url = self.urls[self._call_count % len(self.urls)]
        try:
            return self.http.request(
                method,
                url + path,
                headers={"authorization": f"Bearer {self.key}", **(headers or {})},
                **content,
            )
        except httpx.HTTPError as failure:
            self.last_failure = type(failure).__name__
            return None

    def post_until_success(
        self,
        op: str,
        key: str,
        path: str,
        until_s: float,
        headers: Mapping[str, str] | None = None,
        **content: Any,
    ) -> dict[str, Any]:
        """Repeat a POST under one idempotency key until it succeeds or is refused for good.

        Raises NotServedError when it is refused, at the deadline, and for a success without an id:
        such a response acknowledges an object that cannot be read.
        """
        headers = {"idempotency-key": key, **(headers or {})}
        while True:
            self.recorder.record(self.name, op, key, "invoke")
            response = self.call("POST", path, headers, **content)
            if response is None:
                self.recorder.record(self.name, op, key, "info", failure=self.last_failure)
            elif response.is_success:
                object_id = created_id(response)
                self.recorder.record(
                    self.name, op, key, "ok", id=object_id, **response_summary(response)
                )
                if object_id is None:
                    raise NotServedError(f"{op} {key}: {response.status_code} without an id")
                created: dict[str, Any] = response.json()
                return created
            else:
                self.recorder.record(self.name, op, key, "fail", status=response.status_code)
                if response.status_code not in RETRYABLE_STATUSES:
                    raise NotServedError(f"{op}: {response.status_code} {response.text[:300]}")
            if time.monotonic() > until_s:
                raise NotServedError(f"{op} {key}: no success in time")
            time.sleep(PAUSE_S)

    def upload(self, key: str, content: bytes, until_s: float) -> str:
        """Upload an input file and return its id. Raises NotServedError."""
        files, data = {"file": ("in.jsonl", content)}, {"purpose": "batch"}
        created = self.post_until_success(
            "upload", key, "/v1/files", until_s, files=files, data=data
        )
        return str(created["id"])

    def create(self, key: str, file_id: str, until_s: float, **fields: object) -> dict[str, Any]:
        """Create a job and return it. Raises NotServedError."""
        body = job_body(file_id, **fields)
        return self.post_until_success("create", key, "/v1/batches", until_s, json=body)

    def submit(self, key: str, content: bytes, until_s: float) -> dict[str, Any]:
        """Upload an input file, create a job of it, and return the job. Raises NotServedError."""
        return self.create(key, self.upload(f"file-{key}", content, until_s), until_s)

    def cancel(self, job_id: str, until_s: float) -> CancelResponse:
        """Repeat a cancellation until it is accepted or refused for good. Raises NotServedError."""
        while time.monotonic() < until_s:
            self.recorder.record(self.name, "cancel", job_id, "invoke")
            response = self.call("POST", f"/v1/batches/{job_id}/cancel")
            if response is not None and (
                response.is_success or response.status_code == HTTPStatus.BAD_REQUEST
            ):
                self.recorder.record(self.name, "cancel", job_id, "ok", status=response.status_code)
                return CancelResponse(time.time(), not response.is_success)
            self.recorder.record(self.name, "cancel", job_id, "info")
            time.sleep(PAUSE_S)
        raise NotServedError(f"cancel {job_id}: no response in time")

    def poll_job(self, job_id: str) -> dict[str, Any] | None:
        """Read a job once and record its state; return None without a response."""
        sent_s = time.time()
        response = self.call("GET", f"/v1/batches/{job_id}")
        if response is None or not response.is_success:
            status = 0 if response is None else response.status_code
            self.recorder.record(self.name, "watch", job_id, "info", status=status)
            return None
        job: dict[str, Any] = response.json()
        stamps = {name: job.get(name) for name in ("created_at", *TIMESTAMPS) if job.get(name)}
        self.recorder.record(
            self.name, "watch", job_id, "ok", asked_s=sent_s, status=job["status"], **stamps
        )
        return job

    def await_terminal(
        self, job_ids: Iterable[str], until_s: float, poll: Poll | None = None
    ) -> dict[str, dict[str, Any]]:
        """Poll jobs, each at least once, until all are terminal; return the last state of each.

        A job that was never seen is missing.
        """
        pending, seen = list(job_ids), {}
        is_last = False
        while pending and not is_last:
            is_last = time.monotonic() >= until_s
            for job_id in list(pending):
                job = (poll or self.poll_job)(job_id)
                if job is not None:
                    seen[job_id] = job
                    if job["status"] in TERMINAL:
                        pending.remove(job_id)
            time.sleep(PAUSE_S / 2 if pending else 0)
        return seen

    def read_lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return the lines of an output or error file. Raises NotServedError."""
        if file_id is None:
            return []
        return self.read_json_lines(_content_path(file_id))

    def read_json_lines(self, path: str) -> list[dict[str, Any]]:
        """Return lines of strict JSON, without NaN. Raises NotServedError."""
        content = self._read(path)
        if content is None:
            raise NotServedError(f"{path} cannot be read")
        try:
            return [_LINE.decode(line) for line in content.split(b"\n") if line]
        except msgspec.DecodeError as error:
            raise NotServedError(f"{path} is not JSON: {error}") from None

    def read_content(self, file_id: str) -> bytes | None:
        """Return the bytes of a file, or None when it cannot be read."""
        return self._read(_content_path(file_id))

    def _read(self, path: str) -> bytes | None:
        for _ in range(READ_TRIES):
            response = self.call("GET", path)
            if response is not None and response.is_success:
                return response.content
            time.sleep(PAUSE_S)
        return None


def _content_path(file_id: str) -> str:
    return f"/v1/files/{file_id}/content"


def created_id(response: httpx.Response) -> str | None:
    """Return the id in a response, or None without one."""
    try:
        found = response.json()["id"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and found else None


def response_summary(response: httpx.Response) -> dict[str, object]:
    """Return the properties by which responses are compared, without their content."""
    return {
        "status": response.status_code,
        "replayed": response.headers.get("idempotent-replayed") == "true",
        "digest": hashlib.sha256(response.content).hexdigest(),
    }
