"""Measured jobs on a running stack."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.data.input_files import CHAT, InputFile
from benchmarks.load.jobs_client import JobsClient
from benchmarks.runs import Run, VoidRunError
from benchmarks.stacks.stack import RunningStack
from benchmarks.stacks.verification import verify_output
from benchmarks.statistics.cpu import cpu_by_role, cpu_used

TIMEOUT_S = 900.0


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
        finished = self.client.run(self.file_id, endpoint=self.endpoint, timeout_s=TIMEOUT_S)
        used = cpu_used(before, cpu_by_role(roles))
        if self.stack.roles() != roles:
            raise VoidRunError("a role restarted during the run")
        verify_output(
            self.client.output(finished.batch, self.file.items, self.output), self.file.items
        )
        return Run(items=self.file.items, seconds=finished.seconds, cpu_s=used, facts=self._facts())

    def _facts(self) -> dict[str, float]:
        size = self.file.path.stat().st_size
        return {"upload_s": self.upload_s, "upload_mb_per_s": size / 1e6 / self.upload_s}


def upload_job(
    stack: RunningStack, file: InputFile, output: Path, *, endpoint: str = CHAT
) -> StackJob:
    """Upload `file` and return the job to run."""
    client = JobsClient(stack.url, stack.key)
    file_id, upload_s = client.upload(file.path)
    return StackJob(stack, client, file, file_id, upload_s, output, endpoint)
