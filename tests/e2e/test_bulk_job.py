"""Goal: a job runs from input file to output file through the real client, whatever its items."""

from pathlib import Path

import pytest
from openai import NotFoundError

from cli.stack.processes.supervisor import STOP_S_MAX
from tests.support.job_checks import (
    assert_conserved,
    chat_line,
    create,
    ended,
    submit,
    upload,
    watch,
)
from tests.support.stacks import Stack, running_stack, start_stack


def test_an_item_larger_than_a_record_is_executed(stack: Stack) -> None:
    content = chat_line(0, stack.model, text="x" * 900_000) + chat_line(1, stack.model)
    job = create(stack.client, upload(stack.client, content))
    done = watch(stack.client, job.id, ended)
    assert done.status == "completed"
    assert_conserved(stack.client, done, 2)


@pytest.mark.timeout(400)
def test_a_second_stack_is_independent_survives_sigkill_and_stops_quickly(
    stack: Stack, tmp_path: Path
) -> None:
    options = ("--simulated-latency-ms", "20", "--simulated-concurrency", "16")
    first = start_stack(tmp_path / "data", *options)
    assert first.url != stack.url
    job = submit(first.client, first.model, 1500)
    with pytest.raises(NotFoundError):
        stack.client.batches.retrieve(job.id)
    watch(first.client, job.id, lambda j: bool(j.request_counts and j.request_counts.completed))
    first.kill_everything()
    with running_stack(tmp_path / "data", *options) as restarted:
        assert restarted.key == first.key
        done = watch(restarted.client, job.id, ended)
        assert done.status == "completed"
        assert_conserved(restarted.client, done, 1500)
        assert restarted.stop() < STOP_S_MAX + 5
