"""Submits jobs and checks the guarantees of ended jobs."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from openai import OpenAI
from openai.types import Batch

from chaos.checkers.results import foreign_answers, input_bodies, is_simulated_answer
from tests.support.until import pause_after

TERMINAL = {"completed", "failed", "expired", "cancelled"}
ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


def chat_line(index: int, model: str, *, text: str = "hello", max_tokens: int = 8) -> bytes:
    """Return a line of an input file."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{text} {index}"}],
        "max_tokens": max_tokens,
    }
    line = {"custom_id": f"item-{index}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(line).encode() + b"\n"


def submit(client: OpenAI, model: str, count: int, window: str = "24h") -> Batch:
    """Upload `count` lines and create a job; the window may be shorter than OpenAI's 24h."""
    content = b"".join(chat_line(n, model) for n in range(count))
    return create(client, upload(client, content), window)


def upload(client: OpenAI, content: bytes, name: str = "input.jsonl") -> str:
    """Upload an input file and return its id."""
    return client.files.create(file=(name, content), purpose="batch").id


def create(client: OpenAI, file_id: str, window: str = "24h", **fields: Any) -> Batch:
    """Create the job of an uploaded file; `fields` are Millrace's own."""
    return client.batches.create(
        input_file_id=file_id,
        endpoint=ENDPOINT,
        completion_window=window,  # type: ignore[arg-type]
        extra_body=fields,
    )


def watch(
    client: OpenAI, job_id: str, until: Callable[[Batch], bool], timeout_s: float = 90.0
) -> Batch:
    """Poll a job until `until` holds."""
    started_s = time.monotonic()
    while True:
        job = client.batches.retrieve(job_id)
        if until(job):
            return job
        waited_s = time.monotonic() - started_s
        assert waited_s < timeout_s, job
        time.sleep(pause_after(waited_s))


def ended(job: Batch) -> bool:
    """Whether a job is in a terminal state."""
    return job.status in TERMINAL


def lines_of(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of an output or error file; none of an absent one."""
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).read().splitlines()]


def outcomes_of(job: Batch) -> dict[str, int]:
    """Return the four outcomes that the job itself counts."""
    counts = dict((job.model_extra or {})["millrace"])
    return {name: counts[name] for name in ("succeeded", "failed", "cancelled", "expired")}


def assert_conserved(client: OpenAI, job: Batch, count: int) -> None:
    """Every item ended once, in order, in the right file, and the bill is the sum of its lines."""
    output, errors = lines_of(client, job.output_file_id), lines_of(client, job.error_file_id)
    assert sorted(numbers(output + errors)) == list(range(count))
    assert list(numbers(output)) == sorted(numbers(output))
    assert list(numbers(errors)) == sorted(numbers(errors))
    outcomes = outcomes_of(job)
    assert sum(outcomes.values()) == count
    assert len(output) == outcomes["succeeded"]
    assert job.request_counts is not None
    assert job.request_counts.total == count
    assert job.request_counts.completed == outcomes["succeeded"]
    assert job.request_counts.failed == outcomes["failed"]
    billed = [line["response"]["body"].get("usage") or {} for line in output]
    assert job.usage is not None
    assert job.usage.input_tokens == sum(usage["prompt_tokens"] for usage in billed)
    assert job.usage.output_tokens == sum(usage.get("completion_tokens", 0) for usage in billed)
    assert len({line["id"] for line in output + errors}) == count


def assert_succeeded(client: OpenAI, job: Batch, model: str, count: int) -> None:
    """Every item that `submit` sent to a simulated engine has succeeded, with its own answer."""
    assert outcomes_of(job)["succeeded"] == count
    bodies = input_bodies(b"".join(chat_line(n, model) for n in range(count)))
    assert foreign_answers(bodies, lines_of(client, job.output_file_id), is_simulated_answer) == []


def numbers(lines: list[dict[str, Any]]) -> Iterator[int]:
    """Return the item numbers that the custom ids of `chat_line` carry."""
    return (int(line["custom_id"].removeprefix("item-")) for line in lines)
