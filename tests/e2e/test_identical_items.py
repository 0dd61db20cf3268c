"""Goal: identical items run once, each has its line, and the bill counts executions."""

import json
import random
from typing import Any

import pytest
from openai.types import Batch

from tests.support.job_checks import (
    ENDPOINT,
    create,
    ended,
    lines_of,
    numbers,
    outcomes_of,
    upload,
    watch,
)
from tests.support.kills import published_outcomes
from tests.support.stacks import Stack

pytestmark = pytest.mark.timeout(400)  # includes the start of the stack, and leases


def shuffled(count: int, distinct: int) -> list[int]:
    """Return the prompt of each item; every prompt occurs."""
    prompts = [n % distinct for n in range(count)]
    random.Random(7).shuffle(prompts)
    return prompts


def submit(stack: Stack, prompts: list[int]) -> Batch:
    lines = []
    for number, prompt in enumerate(prompts):
        fields = [
            ("model", stack.model),
            ("messages", [{"role": "user", "content": f"é {prompt}"}]),
            ("max_tokens", 2 + prompt % 7),
        ]
        body = dict(reversed(fields) if number % 2 else fields)
        line = {"custom_id": f"item-{number}", "method": "POST", "url": ENDPOINT, "body": body}
        lines.append(json.dumps(line, ensure_ascii=number % 3 == 0).encode() + b"\n")
    return create(stack.client, upload(stack.client, b"".join(lines)), deduplicate=True)


def copied(job: Batch) -> int:
    count: int = (job.model_extra or {})["millrace"]["deduplicated_items"]
    return count


def bodies(lines: list[dict[str, Any]]) -> dict[int, Any]:
    return {n: line["response"]["body"] for n, line in zip(numbers(lines), lines, strict=True)}


def assert_shared(stack: Stack, job: Batch, prompts: list[int]) -> None:
    """The first item of a prompt is answered and billed; the others have its answer, in order."""
    client = stack.client
    output, errors = lines_of(client, job.output_file_id), lines_of(client, job.error_file_id)
    assert list(numbers(output)) == sorted(numbers(output))
    assert sorted(numbers(output + errors)) == list(range(len(prompts)))
    assert len({line["id"] for line in output + errors}) == len(prompts)
    answers = bodies(output)
    originals = {prompt: prompts.index(prompt) for prompt in set(prompts)}
    for number, prompt in enumerate(prompts):
        assert answers.get(number) == answers.get(originals[prompt])
    billed = [answers[n]["usage"] for n in originals.values() if n in answers]
    assert job.usage is not None
    assert job.usage.input_tokens == sum(usage["prompt_tokens"] for usage in billed)
    assert job.usage.output_tokens == sum(usage["completion_tokens"] for usage in billed)
    assert copied(job) == len(answers) - len(billed)
    assert sum(outcomes_of(job).values()) == len(prompts)
    audit = stack.request("GET", f"/v1/batches/{job.id}/audit?log=true").json()
    assert audit["ok"], audit
    assert audit["log"]["is_whole"]
    assert audit["usage"]["ledger"]["items"] == len(billed)
    assert audit["usage"]["ledger"]["copied"] == copied(job)


def test_only_distinct_items_are_executed(stack: Stack) -> None:
    prompts = shuffled(1000, 300)
    job = watch(stack.client, submit(stack, prompts).id, ended)
    assert job.status == "completed"
    assert published_outcomes(stack, job.id) == 300
    assert copied(job) == 700
    assert_shared(stack, job, prompts)


def test_deduplication_survives_killed_intake_and_writer(stack: Stack) -> None:
    prompts = shuffled(6000, 4000)
    client = stack.client
    job = submit(stack, prompts)
    watch(client, job.id, lambda now: sum(outcomes_of(now).values()) >= 500)
    stack.kill("intake")
    stack.kill("results-writer")
    done = watch(client, job.id, ended, timeout_s=150)
    assert done.status == "completed"
    assert (
        published_outcomes(stack, job.id) <= 4000 + 3000
    )  # chunks after the cursor are sent again
    assert_shared(stack, done, prompts)


def test_a_cancelled_job_keeps_copies_with_their_originals(stack: Stack) -> None:
    prompts = shuffled(8000, 5000)
    client = stack.client
    job = submit(stack, prompts)
    watch(client, job.id, lambda now: sum(outcomes_of(now).values()) >= 500)
    client.batches.cancel(job.id)
    done = watch(client, job.id, ended)
    assert done.status == "cancelled"
    assert outcomes_of(done)["cancelled"] > 0
    assert_shared(stack, done, prompts)
