"""Threads that poll jobs throughout a drill."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks.background_threads import background_threads
from chaos.clients.client import TERMINAL, Client

POLLS_AFTER_END: Final = 3
"""Polls of a terminal job, enough to observe an illegal change."""


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
