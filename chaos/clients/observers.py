"""Threads that observe the API throughout a drill: they poll jobs, or send probes steadily."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

import httpx

from benchmarks.background_threads import background_threads
from chaos.clients.client import TERMINAL, Client
from chaos.clients.history import Recorder

PROBE_S_MAX: Final = 30.0
"""Timeout of a request; a slower one counts as a hang."""

INTERVAL_S: Final = 0.1
CREATE_INTERVAL_S: Final = 0.5
"""Each created job runs next to the measured load, so creations are rarer."""

POLLS_AFTER_END: Final = 3
"""Polls of a terminal job, enough to observe an illegal change."""


def probing(
    recorder: Recorder, url: str, key: str, requests: Mapping[str, Mapping[str, Any]]
) -> AbstractContextManager[None]:
    """Send each request repeatedly during a block, and record time, duration and response.

    Each has a thread of its own. `requests` maps a name to arguments of `httpx.Client.request`.
    """

    def probe(name: str, request: Mapping[str, Any], stop: threading.Event) -> None:
        headers = {"authorization": f"Bearer {key}"}
        posts = request["method"] == "POST"
        interval_s = CREATE_INTERVAL_S if posts and request["url"] == "/v1/batches" else INTERVAL_S
        with httpx.Client(base_url=url, timeout=PROBE_S_MAX, headers=headers) as client:
            while not stop.wait(interval_s):
                asked_s = time.time()
                try:
                    response = client.request(**request)
                except httpx.HTTPError:
                    recorder.record(name, "probe", name, "info", asked_s=asked_s, status=0)
                    continue
                recorder.record(
                    name,
                    "probe",
                    name,
                    "ok" if response.is_success else "fail",
                    asked_s=asked_s,
                    status=response.status_code,
                    retry_after="retry-after" in response.headers,
                    enveloped=response.is_success or is_error_envelope(response),
                    id=str(response.json()["id"]) if posts and response.is_success else None,
                )

    return background_threads(*(partial(probe, *request) for request in requests.items()))


def is_error_envelope(response: httpx.Response) -> bool:
    """Return whether an error response has the API's error format."""
    try:
        error = response.json()["error"]
        return isinstance(error["message"], str) and "type" in error and "code" in error
    except (ValueError, KeyError, TypeError):
        return False


@contextmanager
def watching_jobs(clients: Sequence[Client]) -> Iterator[Callable[[str], None]]:
    """Poll jobs during a block, in a thread for each client; yield a function that adds a job."""
    jobs: list[str] = []
    with background_threads(*(partial(_watch, client, jobs) for client in clients)):
        yield jobs.append


def _watch(client: Client, jobs: Sequence[str], stop: threading.Event) -> None:
    polls: dict[str, int] = {}  # of terminal jobs
    while not stop.is_set():
        for job_id in list(jobs):
            if polls.get(job_id, 0) >= POLLS_AFTER_END:
                continue
            job = client.poll_job(job_id)
            if job is not None and job["status"] in TERMINAL:
                polls[job_id] = polls.get(job_id, 0) + 1
            if stop.wait(0.02):
                return
        stop.wait(0.05)
