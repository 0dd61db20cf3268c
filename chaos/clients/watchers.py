"""Threads that poll jobs throughout a drill."""

import threading
from collections.abc import Sequence
from typing import Final, Self

from chaos.clients.client import TERMINAL, Client

POLLS_AFTER_END: Final = 3
"""Polls of a terminal job, enough to observe an illegal change."""


class Watchers:
    """Poll jobs in threads, one for each client, until they are stopped."""

    def __init__(self, clients: Sequence[Client]) -> None:
        """Create the threads; `start` starts them."""
        self._jobs: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(client,), daemon=True) for client in clients
        ]

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    def add(self, job_id: str) -> None:
        """Poll one more job."""
        self._jobs.append(job_id)

    def stop(self) -> None:
        """Stop all threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        """Start all threads; the end of the block stops them, also after an error."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all threads."""
        self.stop()

    def _watch(self, client: Client) -> None:
        polls: dict[str, int] = {}  # of terminal jobs
        while not self._stop.is_set():
            for job_id in list(self._jobs):
                if polls.get(job_id, 0) >= POLLS_AFTER_END:
                    continue
                job = client.poll_job(job_id)
                if job is not None and job["status"] in TERMINAL:
                    polls[job_id] = polls.get(job_id, 0) + 1
                if self._stop.wait(0.02):
                    return
            self._stop.wait(0.05)
