"""P1, P2 and P4 of durable online calls: what was accepted is answered, and billed once."""

import json
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Self

import sqlalchemy as sa

from chaos.checkers.answers import is_simulated_answer
from chaos.checkers.results import Usage
from chaos.clients.client import ENDPOINT, PAUSE_S, TERMINAL, Client
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.observations.database import billed_usage
from chaos.reports.measures import Measure

INTERVAL_S: Final = 0.3
TOLD_S_MAX: Final = 600.0


def chat_body(text: str, tokens: int) -> bytes:
    """Return the body of a chat as its engine reads it, which fields of ours do not reach."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    return json.dumps(body, separators=(",", ":")).encode()


class DurableCalls:
    """A client that calls in the background, each time under a key, during a block."""

    def __init__(self, context: DrillContext) -> None:
        """Nothing is called yet."""
        self.bodies: dict[str, bytes] = {}  # job of a call to what its engine reads
        self.failures: list[str] = []
        self._setting = context
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._call_on, name="calls", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End when the last call was accepted or given up."""
        self._stop.set()
        self._thread.join()

    def _call_on(self) -> None:
        seed, client, number = self._setting.seed, self._setting.client("calls"), 0
        while not self._stop.wait(INTERVAL_S):
            body = chat_body(f"call {seed} {number}", 1 + number % 8)
            try:
                self.bodies[_accepted(client, f"call-{seed}-{number}", body)] = body
            except DrillError as failure:
                self.failures.append(str(failure))
            number += 1


def _accepted(client: Client, key: str, body: bytes) -> str:
    """Call in the background until that is accepted; return the job's id. Raises DrillError."""
    content = body[:-1] + b',"background":true}'
    headers = {"idempotency-key": key, "content-type": "application/json"}
    answer = client.retry_until_success(
        "call",
        key,
        lambda: client.call("POST", ENDPOINT, headers, content=content),
        time.monotonic() + TOLD_S_MAX,
    )
    return str(answer.json()["id"])


def check_calls(
    engine: sa.Engine, client: Client, promise: str, bodies: Mapping[str, bytes], until_s: float
) -> list[Measure]:
    """Follow accepted calls to their ends, and judge answers and bills.

    `bodies` maps the job of a call to what its engine reads.
    """
    ended = await_calls(client, bodies, until_s)
    unanswered = {job: told for job in bodies if (told := _unanswered(ended.get(job)))}
    good = {job: ended[job] for job in bodies if job not in unanswered}
    others = [
        job for job, found in good.items() if not is_simulated_answer(bodies[job], _body_of(found))
    ]
    wrongly = [job for job, found in good.items() if billed_usage(engine, job) != _bill_of(found)]

    def measure(promise: str, what: str, wrong: list[str]) -> Measure:
        told = "; ".join(wrong[:5])
        return Measure(
            promise=promise, what=what, value=len(wrong), size=len(bodies), evidence=told
        )

    missing = [f"{job}: {told}" for job, told in unanswered.items()]
    return [
        measure(promise, "accepted calls that were never answered well", missing),
        measure("P2", "accepted calls with an answer or tokens that are not their own", others),
        measure("P4", "accepted calls that are not on the ledger once, to the token", wrongly),
    ]


def await_calls(
    client: Client, jobs: Mapping[str, object], until_s: float
) -> dict[str, dict[str, Any]]:
    """Poll calls until all have ended or time is up, each once at least; return what was seen."""
    waiting, seen = list(jobs), {}
    is_last = False
    while waiting and not is_last:
        is_last = time.monotonic() >= until_s
        for job in list(waiting):
            answer = client.call("GET", f"/v1/jobs/{job}")
            if answer is None or not answer.is_success:
                continue
            seen[job] = answer.json()
            if seen[job]["status"] in TERMINAL:
                client.recorder.record(client.name, "follow", job, "ok", status=seen[job]["status"])
                waiting.remove(job)
        time.sleep(PAUSE_S / 2 if waiting else 0)
    return seen


def _unanswered(job: Mapping[str, Any] | None) -> str:
    """Return why a call has no good answer; empty when it has."""
    if job is None:
        return "missing"
    response = job.get("response") or {}
    if job["status"] == "completed" and response.get("status_code") == 200:
        return ""
    return f"{job['status']}, {response.get('status_code')} {job.get('error')}"


def _body_of(job: Mapping[str, Any]) -> object:
    return job["response"]["body"]


def _bill_of(job: Mapping[str, Any]) -> Usage:
    """Return what its owner owes for a call, as the call itself shows it."""
    shown = job.get("usage") or {}
    return Usage(
        items=1,
        input_tokens=shown.get("input_tokens", -1),
        output_tokens=shown.get("output_tokens", -1),
    )
