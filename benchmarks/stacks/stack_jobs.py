"""One measured job on a running stack."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.data.input_files import CHAT, InputFile
from benchmarks.load.jobs_client import JobsClient
from benchmarks.runs import Run, VoidRunError
from benchmarks.stacks.stack import RunningStack
from benchmarks.stacks.verification import verify_output
from benchmarks.statistics.cpu import cpu_by_role, spent

TIMEOUT_S = 900.0


@dataclass(slots=True)
class StackJob:
    """A file that was uploaded once and is run as a new job each time."""

    stack: RunningStack
    client: JobsClient
    file: InputFile
    file_id: str
    upload_s: float
    output: Path
    endpoint: str = CHAT

    def run(self) -> Run:
        """Run the job and verify its output. Raises VoidRunError.

        CPU is that of every process of the stack between the two moments; the client's own is
        left out. The verification comes after both.
        """
        roles = self.stack.roles()
        before = cpu_by_role(roles)
        finished = self.client.run(self.file_id, endpoint=self.endpoint, timeout_s=TIMEOUT_S)
        used = spent(before, cpu_by_role(roles))
        if self.stack.roles() != roles:
            raise VoidRunError("a role was started again during the run")
        verify_output(
            self.client.output(finished.batch, self.file.items, self.output), self.file.items
        )
        return Run(items=self.file.items, seconds=finished.seconds, cpu_s=used, facts=self._facts())

    def _facts(self) -> dict[str, float]:
        size = self.file.path.stat().st_size
        return {"upload_s": self.upload_s, "upload_mb_per_s": size / 1e6 / self.upload_s}


def upload(stack: RunningStack, file: InputFile, output: Path, *, endpoint: str = CHAT) -> StackJob:
    """Upload `file` and return the job to run."""
    client = JobsClient(stack.url, stack.key)
    file_id, upload_s = client.upload(file.path)
    return StackJob(stack, client, file, file_id, upload_s, output, endpoint)
