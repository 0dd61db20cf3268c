"""Clients that write down what they do and hear; each call is one attempt, nothing is hidden."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Self

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
"""Answers after which the same call may succeed; a 500 among them is counted by the judges."""


def input_lines(
    count: int,
    model: str,
    texts: Mapping[int, str] | None = None,
    fields: Mapping[int, Mapping[str, object]] | None = None,
) -> bytes:
    """Return an input file of `count` items; single ones have their own text or further fields."""
    lines = []
    for number in range(count):
        text = (texts or {}).get(number, f"hello {number}")
        body = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1 + number % 8,  # so that an answer with others' tokens shows
            **(fields or {}).get(number, {}),
        }
        line = {"custom_id": f"item-{number}", "method": "POST", "url": ENDPOINT, "body": body}
        lines.append(json.dumps(line))
    return ("\n".join(lines) + "\n").encode()


class CancelResponse(NamedTuple):
    """What a cancel came to."""

    at_s: float  # when it was answered, seconds since the epoch
    refused: bool  # right only of a job that had ended by then


@dataclass(slots=True)
class Client:
    """One client of one or several API addresses, asked in turn."""

    name: str
    urls: Sequence[str]
    key: str
    recorder: Recorder
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=CALL_S_MAX))
    failure: str = ""  # why there was no answer, the last time that there was none
    _turn: int = 0

    def call(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **content: Any
    ) -> httpx.Response | None:
        """Return the answer; None when there was none: then nobody knows what happened."""
        self._turn += 1
        url = self.urls[self._turn % len(self.urls)]
        try:
            return self.http.request(
                method,
                url + path,
                headers={"authorization": f"Bearer {self.key}", **(headers or {})},
                **content,
            )
        except httpx.HTTPError as failure:
            self.failure = type(failure).__name__
            return None

    def retry_until_success(
        self, op: str, key: str, ask: Callable[[], httpx.Response | None], until_s: float
    ) -> httpx.Response:
        """Repeat a call under one idempotency key until it succeeds or is refused for good.

        Raises NotServedError when it is refused, when time is up, and for a success that names
        nothing: it acknowledged what nobody can ask for.
        """
        while True:
            self.recorder.record(self.name, op, key, "invoke")
            answer = ask()
            if answer is None:
                self.recorder.record(self.name, op, key, "info", failure=self.failure)
            elif answer.is_success:
                made = acknowledged_id(answer)
                self.recorder.record(self.name, op, key, "ok", id=made, **told(answer))
                if made is None:
                    raise NotServedError(f"{op} {key}: {answer.status_code} without an id")
                return answer
            else:
                self.recorder.record(self.name, op, key, "fail", status=answer.status_code)
                if answer.status_code not in RETRYABLE_STATUSES:
                    raise NotServedError(f"{op}: {answer.status_code} {answer.text[:300]}")
            if time.monotonic() > until_s:
                raise NotServedError(f"{op} {key}: no success in time")
            time.sleep(PAUSE_S)

    def upload(self, key: str, content: bytes, until_s: float) -> str:
        """Upload an input file and return its id. Raises DrillError."""
        answer = self.retry_until_success(
            "upload",
            key,
            lambda: self.call(
                "POST",
                "/v1/files",
                {"idempotency-key": key},
                files={"file": ("in.jsonl", content)},
                data={"purpose": "batch"},
            ),
            until_s,
        )
        return str(answer.json()["id"])

    def create(self, key: str, file_id: str, until_s: float, **fields: object) -> dict[str, Any]:
        """Create a job and return it. Raises DrillError."""
        body = {
            "input_file_id": file_id,
            "endpoint": ENDPOINT,
            "completion_window": "24h",
            **fields,
        }
        answer = self.retry_until_success(
            "create",
            key,
            lambda: self.call("POST", "/v1/batches", {"idempotency-key": key}, json=body),
            until_s,
        )
        found: dict[str, Any] = answer.json()
        return found

    def cancel(self, job_id: str, until_s: float) -> float | None:
        """Cancel a job and return when that was answered; None for a job that had ended."""
        answer = self.request_cancel(job_id, until_s)
        return None if answer.refused else answer.at_s

    def request_cancel(self, job_id: str, until_s: float) -> CancelResponse:
        """Ask until a cancel is accepted, or refused for good. Raises DrillError."""
        while time.monotonic() < until_s:
            self.recorder.record(self.name, "cancel", job_id, "invoke")
            answer = self.call("POST", f"/v1/batches/{job_id}/cancel")
            if answer is not None and (
                answer.is_success or answer.status_code == HTTPStatus.BAD_REQUEST
            ):
                self.recorder.record(self.name, "cancel", job_id, "ok", status=answer.status_code)
                return CancelResponse(time.time(), not answer.is_success)
            self.recorder.record(self.name, "cancel", job_id, "info")
            time.sleep(PAUSE_S)
        raise NotServedError(f"cancel {job_id}: no answer in time")

    def poll_job(self, job_id: str) -> dict[str, Any] | None:
        """Look at a job once and write down its state; None when there was no answer."""
        asked_s = time.time()
        answer = self.call("GET", f"/v1/batches/{job_id}")
        if answer is None or not answer.is_success:
            status = 0 if answer is None else answer.status_code
            self.recorder.record(self.name, "watch", job_id, "info", status=status)
            return None
        job: dict[str, Any] = answer.json()
        stamps = {name: job.get(name) for name in ("created_at", *TIMESTAMPS) if job.get(name)}
        self.recorder.record(
            self.name, "watch", job_id, "ok", asked_s=asked_s, status=job["status"], **stamps
        )
        return job

    def await_terminal(self, job_ids: Iterable[str], until_s: float) -> dict[str, dict[str, Any]]:
        """Poll jobs until all have ended or time is up; return those that have."""
        waiting, ended = list(job_ids), {}
        is_last = False  # each is looked at once, however late it is
        while waiting and not is_last:
            is_last = time.monotonic() >= until_s
            for job_id in list(waiting):
                job = self.poll_job(job_id)
                if job is not None and job["status"] in TERMINAL:
                    ended[job_id] = job
                    waiting.remove(job_id)
            time.sleep(PAUSE_S / 2)
        return ended

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return the lines of an output or error file. Raises NotServedError."""
        if file_id is None:
            return []
        return self.read_json_lines(_content(file_id))

    def read_json_lines(self, path: str) -> list[dict[str, Any]]:
        """Return lines of JSON, strictly read: NaN is none. Raises NotServedError."""
        found = self._read(path)
        if found is None:
            raise NotServedError(f"{path} cannot be read")
        try:
            return [_LINE.decode(line) for line in found.split(b"\n") if line]
        except msgspec.DecodeError as mistake:
            raise NotServedError(f"{path} is not JSON: {mistake}") from None

    def content(self, file_id: str) -> bytes | None:
        """Return the bytes of a file; None when it cannot be read."""
        return self._read(_content(file_id))

    def _read(self, path: str) -> bytes | None:
        for _ in range(READ_TRIES):
            answer = self.call("GET", path)
            if answer is not None and answer.is_success:
                return answer.content
            time.sleep(PAUSE_S)
        return None


def _content(file_id: str) -> str:
    return f"/v1/files/{file_id}/content"


def acknowledged_id(answer: httpx.Response) -> str | None:
    """Return the id of what an answer says it made; None when it names nothing."""
    try:
        found = answer.json()["id"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and found else None


def told(answer: httpx.Response) -> dict[str, object]:
    """Return what tells whether two answers are the same, without what they hold."""
    return {
        "status": answer.status_code,
        "replayed": answer.headers.get("idempotent-replayed") == "true",
        "digest": hashlib.sha256(answer.content).hexdigest(),
    }


POLLS_AFTER_END: Final = 3
"""At a job that has ended: enough to see it change when it must not."""


class Watchers:
    """Threads that look at jobs all the time, each with the address of one host.

    Each looks at those that have not ended, and at each that has a few times more.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        """Nothing is watched yet."""
        self._jobs: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(client,), daemon=True) for client in clients
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def add(self, job_id: str) -> None:
        """Watch one job more."""
        self._jobs.append(job_id)

    def stop(self) -> None:
        """End all threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        """Watch during a block: whatever ends it, nobody looks on in the next round."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """See `stop`."""
        self.stop()

    def _watch(self, client: Client) -> None:
        looks: dict[str, int] = {}  # at jobs that had ended
        while not self._stop.is_set():
            for job_id in list(self._jobs):
                if looks.get(job_id, 0) >= POLLS_AFTER_END:
                    continue
                job = client.poll_job(job_id)
                if job is not None and job["status"] in TERMINAL:
                    looks[job_id] = looks.get(job_id, 0) + 1
                if self._stop.wait(0.02):
                    return
            self._stop.wait(0.05)
