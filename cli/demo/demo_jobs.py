"""The demo's three jobs: writes their requests, runs them and checks their files."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cli.api_client import Batch, Client
from cli.batch.job_display import JobDisplay, poll_job
from cli.batch.job_downloads import DownloadTarget
from cli.batch.job_progress import JobStatus, progress_of, wait_until_ended
from cli.demo.demo_models import TINY_MODEL
from cli.demo.demo_texts import DocumentedName
from cli.exits import WaitTimeoutError
from cli.stack.errors import StackTimeoutError
from core.states import JobState

JOB_S_MAX = 600.0
EMBEDDER, CHATTER = "minilm", TINY_MODEL
CHAT_TOKENS_MAX = 32
QUERIES = (
    "parse a date from a string",
    "compress data to save space",
    "read a settings file in INI format",
)


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """The paths of a job's three files."""

    requests: Path
    results: Path
    errors: Path


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job of the demo: the prefix of its file names, and the endpoint of every request."""

    name: str
    endpoint: str

    def files(self, folder: Path) -> DemoFiles:
        """Return the paths of its files in `folder`."""
        parts = ("requests", "results", "errors")
        return DemoFiles(*(folder / f"{self.name}.{part}.jsonl" for part in parts))


TEXTS_JOB = DemoJob("embeddings", "/v1/embeddings")
QUERIES_JOB = DemoJob("questions", "/v1/embeddings")
CHAT_JOB = DemoJob("chat", "/v1/chat/completions")
JOBS = (TEXTS_JOB, QUERIES_JOB, CHAT_JOB)


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that has ended, its files, and the seconds from upload to its terminal state."""

    progress: JobStatus
    files: DemoFiles
    seconds: float
    tokens: int
    first_result_at_s: float  # on the monotonic clock

    @property
    def items_per_s(self) -> float:
        """Items per second, upload included."""
        return self.progress.ended / self.seconds


def write_inputs(out: Path, documented: Sequence[DocumentedName], prompt_count: int) -> None:
    """Write the input file of every job into `out`."""
    bodies = {
        TEXTS_JOB: ((d.name, _embedding(d.text)) for d in documented),
        QUERIES_JOB: ((query, _embedding(query)) for query in QUERIES),
        CHAT_JOB: _chats([d.name for d in documented], prompt_count),
    }
    for job in JOBS:
        write_requests(job.files(out).requests, job.endpoint, bodies[job])


def _embedding(text: str) -> Mapping[str, object]:
    # base64, as the official client requests by default: a quarter of the bytes.
    return {"model": EMBEDDER, "encoding_format": "base64", "input": text}


def _chats(names: Sequence[str], count: int) -> Iterator[tuple[str, Mapping[str, object]]]:
    for number in range(count):
        prompt = f"What does {names[number % len(names)]} do?"
        yield (
            f"chat-{number}",
            {
                "model": CHATTER,
                "max_tokens": CHAT_TOKENS_MAX,
                "messages": [{"role": "user", "content": prompt}],
            },
        )


def write_requests(
    path: Path, endpoint: str, bodies: Iterable[tuple[str, Mapping[str, object]]]
) -> None:
    """Write a line with a request for each (custom_id, body)."""
    with path.open("wb") as file:
        for custom_id, body in bodies:
            line = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
            file.write(msgspec.json.encode(line) + b"\n")


def run_job(client: Client, job: DemoJob, out: Path, *, quiet: bool = False) -> FinishedJob:
    """Upload, create, watch and download a job with the official client.

    Raises StackTimeoutError, and the errors of the client.
    """
    files = job.files(out)
    began_s = time.monotonic()
    first_result_at_s: float | None = None
    with files.requests.open("rb") as content:
        uploaded = client.files.create(file=(files.requests.name, content), purpose="batch")
    parameters: dict[str, Any] = {"endpoint": job.endpoint, "completion_window": "24h"}
    batch = client.batches.create(input_file_id=uploaded.id, **parameters)
    with JobDisplay(job.name, quiet=quiet) as display:

        def show(current: Batch) -> None:
            nonlocal first_result_at_s
            if first_result_at_s is None and progress_of(current).ended:
                first_result_at_s = time.monotonic()
            display.show(current)

        try:
            ended = wait_until_ended(poll_job(client, batch.id), show, timeout_s=JOB_S_MAX)
        except WaitTimeoutError:  # its message is about --timeout
            raise StackTimeoutError(
                f"The job {job.name} did not end within {JOB_S_MAX:.0f} s."
            ) from None
    seconds = time.monotonic() - began_s
    DownloadTarget(files.results).download(client, ended.output_file_id)
    DownloadTarget(files.errors).download(client, ended.error_file_id)
    return FinishedJob(
        progress=progress_of(ended),
        files=files,
        seconds=seconds,
        tokens=ended.usage.total_tokens if ended.usage else 0,
        first_result_at_s=first_result_at_s or time.monotonic(),
    )


def find_problems(job: FinishedJob) -> list[str]:
    """Return one line for each guarantee that the job's files violate."""
    requested = custom_ids(job.files.requests)
    answered, failed = custom_ids(job.files.results), custom_ids(job.files.errors)
    progress = job.progress
    problems = []
    if progress.state is not JobState.COMPLETED:
        problems.append(f"the job is {progress.state}")
    if progress.ended != len(requested):
        problems.append(f"{len(requested)} requests became {progress.ended} outcomes")
    if progress.succeeded != len(answered):
        problems.append(f"{progress.succeeded} succeeded, {len(answered)} results")
    if failed:
        problems.append(f"{len(failed)} did not succeed")
    count_by_id = Counter([*answered, *failed])
    if missing := len(set(requested) - set(count_by_id)):
        problems.append(f"{missing} requests are missing in both files")
    if unknown := len(set(count_by_id) - set(requested)):
        problems.append(f"{unknown} results belong to no request")
    if repeated := sum(count > 1 for count in count_by_id.values()):
        problems.append(f"{repeated} requests were answered more than once")
    if not _keeps_order(answered, requested):
        problems.append("the results are not in the order of the requests")
    return problems


def custom_ids(path: Path) -> list[str]:
    """Return the `custom_id` of every line, in order."""
    with path.open("rb") as lines:
        return [msgspec.json.decode(line)["custom_id"] for line in lines]


def _keeps_order(some: list[str], all_of_them: list[str]) -> bool:
    index_by_id = {custom_id: index for index, custom_id in enumerate(all_of_them)}
    indexes = [index_by_id[custom_id] for custom_id in some if custom_id in index_by_id]
    return indexes == sorted(indexes)
