"""The demo's three jobs with their models and requests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.demo.demo_jobs import DemoFiles, write_requests
from cli.demo.demo_texts import DocumentedName

EMBEDDER, CHATTER = "minilm", "tiny-llama"
CHAT_TOKENS_MAX = 32
QUERIES = (
    "parse a date from a string",
    "compress data to save space",
    "read a settings file in INI format",
)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job of the demo: the prefix of its file names, and the endpoint of every request."""

    name: str
    endpoint: str


TEXTS_JOB = DemoJob("embeddings", "/v1/embeddings")
QUERIES_JOB = DemoJob("questions", "/v1/embeddings")
CHAT_JOB = DemoJob("chat", "/v1/chat/completions")
JOBS = (TEXTS_JOB, QUERIES_JOB, CHAT_JOB)


def write_inputs(out: Path, documented: Sequence[DocumentedName], prompt_count: int) -> None:
    """Write the input file of every job into `out`."""
    bodies = {
        TEXTS_JOB: ((d.name, _embedding(d.text)) for d in documented),
        QUERIES_JOB: ((query, _embedding(query)) for query in QUERIES),
        CHAT_JOB: _chats([d.name for d in documented], prompt_count),
    }
    for job in JOBS:
        write_requests(DemoFiles.of(out, job.name).requests, job.endpoint, bodies[job])


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
