"""Jobs on a running stack, through the official OpenAI client, and their measurement."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import openai
from openai.types import Batch

from benchmarks.data.input_files import CHAT, InputFile
from benchmarks.runs import Run, VoidRunError
from benchmarks.stacks.load_runs import Server
from benchmarks.stacks.stack import RunningStack
from benchmarks.stacks.verification import verify_output
from benchmarks.statistics.cpu import cpu_by_role, cpu_used
from core.urgency import PRIORITY_DEFAULT

JOB_S_MAX = 900.0
REQUEST_S_MAX = 600.0
POLL_S = 0.1
"""Lengthens a run by half of this on average; a shorter interval would cost CPU."""


def is_terminal(batch: Batch) -> bool:
    """Return whether a job has ended."""
    return batch.status in ("completed", "failed", "expired", "cancelled")


class JobsClient:
    """A client of one stack."""

    def __init__(self, server: Server) -> None:
        """Create the client without a request."""
        self._client = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=REQUEST_S_MAX
        )

    def upload(self, path: Path) -> tuple[str, float]:
        """Return the id of the uploaded file and the seconds that it took."""
        started_s = time.perf_counter()
        uploaded = self._client.files.create(file=path, purpose="batch")
        return uploaded.id, time.perf_counter() - started_s

    def run(self, file_id: str, *, endpoint: str) -> tuple[Batch, float]:
        """Create a job and return it terminal. Raises VoidRunError on a timeout.

        The seconds are from the creation request to the first terminal response.
        """
        started_s = time.perf_counter()
        batch = self.wait(self.start(file_id, endpoint=endpoint), is_terminal)
        return batch, time.perf_counter() - started_s

    def start(
        self,
        file_id: str,
        *,
        endpoint: str = CHAT,
        completion_window: str = "24h",
        priority: int = PRIORITY_DEFAULT,
    ) -> Batch:
        """Create a job."""
        return self._client.batches.create(
            input_file_id=file_id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window=completion_window,  # type: ignore[arg-type]
            extra_body={"priority": priority},
        )

    def set_deadline(self, batch: Batch, expires_at_s: int) -> None:
        """Set the time at which a job expires, in seconds since the epoch."""
        body = {"expires_at": expires_at_s}
        self._client.post(f"/batches/{batch.id}", body=body, cast_to=Batch)

    def read(self, batch: Batch) -> Batch:
        """Return a job as it is now."""
        return self._client.batches.retrieve(batch.id)

    def wait(self, batch: Batch, until: Callable[[Batch], bool]) -> Batch:
        """Poll a job until `until` is true. Raises VoidRunError on a timeout."""
        started_s = time.perf_counter()
        while not until(batch):
            if time.perf_counter() - started_s > JOB_S_MAX:
                raise VoidRunError(f"the job is {batch.status} after {JOB_S_MAX:g} s")
            time.sleep(POLL_S)
            batch = self.read(batch)
        return batch

    def request_cancel(self, batch: Batch) -> None:
        """Cancel a job unless it has ended, and do not wait."""
        with suppress(openai.BadRequestError):  # it has ended
            self._client.batches.cancel(batch.id)

    def cancel(self, batch: Batch) -> Batch:
        """Cancel a job unless it has ended, and return it terminal. Raises VoidRunError."""
        self.request_cancel(batch)
        return self.wait(batch, is_terminal)

    def output(self, batch: Batch, items: int, path: Path) -> Path:
        """Download the output file of a job whose items have all succeeded.

        Raises VoidRunError.
        """
        counts = batch.request_counts
        if batch.status != "completed" or counts is None or counts.completed != items:
            raise VoidRunError(f"the job is {batch.status} with {counts}")
        if batch.error_file_id is not None or batch.output_file_id is None:
            raise VoidRunError("the job has an error file or no output file")
        return self.download(batch.output_file_id, path)

    def download(self, file_id: str, path: Path) -> Path:
        """Download a file."""
        with self._client.files.with_streaming_response.content(file_id) as response:
            response.stream_to_file(path)
        return path


@dataclass(slots=True)
class StackJob:
    """An uploaded file that each run executes as a new job."""

    stack: RunningStack
    client: JobsClient
    file: InputFile
    file_id: str
    upload_s: float
    output: Path
    endpoint: str = CHAT

    def run(self) -> Run:
        """Run the job and verify its output. Raises VoidRunError.

        CPU is that of every process of the stack between creation and completion, without the
        client and the verification.
        """
        roles = self.stack.roles()
        before = cpu_by_role(roles)
        batch, seconds = self.client.run(self.file_id, endpoint=self.endpoint)
        used = cpu_used(before, cpu_by_role(roles))
        if self.stack.roles() != roles:
            raise VoidRunError("a role restarted during the run")
        verify_output(self.client.output(batch, self.file.items, self.output), self.file.items)
        megabytes = self.file.path.stat().st_size / 1e6
        facts = {"upload_s": self.upload_s, "upload_mb_per_s": megabytes / self.upload_s}
        return Run(items=self.file.items, seconds=seconds, cpu_s=used, facts=facts)


def upload_job(
    stack: RunningStack, file: InputFile, output: Path, *, endpoint: str = CHAT
) -> StackJob:
    """Upload `file` and return the job to run."""
    client = JobsClient(stack.server)
    file_id, upload_s = client.upload(file.path)
    return StackJob(stack, client, file, file_id, upload_s, output, endpoint)
