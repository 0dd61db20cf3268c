"""Jobs on a running stack, through the official OpenAI client."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import openai
from openai.types import Batch

from benchmarks.runs import VoidRunError

POLL_S = 0.1
"""Lengthens a run by half of this on average; a shorter interval would cost CPU."""

TERMINAL = ("completed", "failed", "expired", "cancelled")
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A terminal job and its duration."""

    seconds: float  # from the creation request to the first terminal response
    batch: Batch


class JobsClient:
    """A client of one stack."""

    def __init__(self, url: str, key: str) -> None:
        """Create the client without a request."""
        self._client = openai.OpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=_TIMEOUT_S
        )

    def upload(self, path: Path) -> tuple[str, float]:
        """Return the id of the uploaded file and the seconds that it took."""
        started_s = time.perf_counter()
        uploaded = self._client.files.create(file=path, purpose="batch")
        return uploaded.id, time.perf_counter() - started_s

    def run(self, file_id: str, *, endpoint: str, timeout_s: float) -> Finished:
        """Create a job and wait until it is terminal. Raises VoidRunError on a timeout."""
        started_s = time.perf_counter()
        batch = self.start(file_id, endpoint=endpoint)
        batch = self.wait(batch, lambda job: job.status in TERMINAL, timeout_s=timeout_s)
        return Finished(time.perf_counter() - started_s, batch)

    def start(self, file_id: str, *, endpoint: str) -> Batch:
        """Create a job."""
        return self._client.batches.create(
            input_file_id=file_id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window="24h",
        )

    def wait(self, batch: Batch, until: Callable[[Batch], bool], *, timeout_s: float) -> Batch:
        """Poll a job until `until` is true. Raises VoidRunError on a timeout."""
        started_s = time.perf_counter()
        while not until(batch):
            if time.perf_counter() - started_s > timeout_s:
                raise VoidRunError(f"the job is {batch.status} after {timeout_s:g} s")
            time.sleep(POLL_S)
            batch = self._client.batches.retrieve(batch.id)
        return batch

    def cancel(self, batch: Batch, *, timeout_s: float) -> Batch:
        """Cancel a job unless it has ended, and return it terminal. Raises VoidRunError."""
        with suppress(openai.BadRequestError):  # it has ended
            self._client.batches.cancel(batch.id)
        return self.wait(batch, lambda job: job.status in TERMINAL, timeout_s=timeout_s)

    def output(self, batch: Batch, items: int, path: Path) -> Path:
        """Download the output file of a job whose items have all succeeded.

        Raises VoidRunError.
        """
        counts = batch.request_counts
        if batch.status != "completed" or counts is None or counts.completed != items:
            raise VoidRunError(f"the job is {batch.status} with {counts}")
        if batch.error_file_id is not None or batch.output_file_id is None:
            raise VoidRunError("the job has an error file or no output file")
        with self._client.files.with_streaming_response.content(batch.output_file_id) as response:
            response.stream_to_file(path)
        return path
