"""Runs a job with poison items: which items fail, with which code, after how many restarts."""

import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tests.support.job_checks import ENDPOINT, assert_conserved, chat_line, ended, lines_of, watch
from tests.support.stacks import Stack, running_stack

ITEM_COUNT = 5000
POISON_COUNT = 20
TRIES_MAX = 3
JOB_S_MAX = 480.0

CODES = {
    "crash": "item_crashes_engine",
    "freeze": "item_crashes_engine",
    "oom": "item_out_of_memory",
    "hang": "item_timeout",
    "error500": "simulated_fault",
    "overflow": "context_length_exceeded",
}
"""Each fault of the simulated engine, and the code that its item must end with."""

_ENV = {
    "MILLRACE_ENGINE_SIMULATED_FAULTS": json.dumps(
        [{"contains": f"POISON-{fault}", "fault": fault} for fault in CODES]
    ),
    "MILLRACE_ENGINE_ITEM_TIMEOUT_S": "3",
    "MILLRACE_GPU_STUCK_S_MAX": "2",
    "MILLRACE_GPU_ENGINE_REACTION_S": "2",
    "MILLRACE_KAFKA_SESSION_TIMEOUT_S": "2",
    "MILLRACE_WRITER_RETRY_BACKOFF_S": "1",
}


@dataclass(frozen=True, slots=True)
class Poisoned:
    """The result of a job with poison items."""

    wanted: dict[str, str]  # custom id to the code that it must fail with
    failed: dict[str, str]
    restarts: int  # of the replica


@contextmanager
def poisoned_stack(data: Path) -> Iterator[Stack]:
    """Run a stack whose simulated engine has faults, with session timeouts of 2 s."""
    with (
        patch.dict(os.environ, _ENV),
        running_stack(data, "--simulated-latency-ms", "20", "--simulated-concurrency", "64") as up,
    ):
        yield up


def run_poison(stack: Stack, faults: Sequence[str], seed: int) -> Poisoned:
    """Run a job with one item for each fault, at seeded indexes; check that every item ends."""
    indexes = random.Random(seed).sample(range(ITEM_COUNT), len(faults))
    fault_by_index = dict(zip(indexes, faults, strict=True))
    content = b"".join(
        chat_line(
            n, stack.model, text=f"POISON-{fault_by_index[n]}" if n in fault_by_index else "hello"
        )
        for n in range(ITEM_COUNT)
    )
    client = stack.client
    file = client.files.create(file=("input.jsonl", content), purpose="batch")
    job = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    done = watch(client, job.id, ended, timeout_s=JOB_S_MAX)
    assert done.status == "completed", done
    assert_conserved(client, done, ITEM_COUNT)
    failed = {
        line["custom_id"]: line["response"]["body"]["error"]["code"]
        for line in lines_of(client, done.error_file_id)
    }
    wanted = {f"item-{index}": CODES[fault] for index, fault in fault_by_index.items()}
    return Poisoned(wanted, failed, _restart_count(stack))


def _restart_count(stack: Stack) -> int:
    """Count the replica's exits in the supervisor's log."""
    lines = (stack.data / "logs" / "up.log").read_text().splitlines()
    return sum("child_died" in line and "gpu-" in line for line in lines)
