"""Goal: a job runs from input file to output file through the real client, whatever its items."""

import json
from pathlib import Path

import pytest
from openai import BadRequestError, NotFoundError

from cli.stack.processes.supervisor import STOP_S_MAX
from tests.support.job_checks import (
    ENDPOINT,
    assert_conserved,
    chat_line,
    ended,
    lines_of,
    outcomes_of,
    submit,
    watch,
)
from tests.support.stacks import Stack, running_stack, start_stack


def test_every_item_has_one_answer_in_order(stack: Stack) -> None:
    job = submit(stack.client, stack.model, 250)
    assert job.status == "validating"
    assert job.output_file_id is None
    done = watch(stack.client, job.id, ended)
    assert done.status == "completed"
    assert_conserved(stack.client, done, 250)
    assert done.error_file_id is None
    line = lines_of(stack.client, done.output_file_id)[7]
    assert line["custom_id"] == "item-7"
    assert line["error"] is None
    assert line["response"]["status_code"] == 200
    assert "simulated" in line["response"]["body"]["model"]


def test_a_failing_item_is_in_the_error_file_with_its_response(stack: Stack) -> None:
    body = {"model": stack.model, "messages": "not a list"}
    bad = {"custom_id": "item-1", "method": "POST", "url": ENDPOINT, "body": body}
    content = chat_line(0, stack.model) + json.dumps(bad).encode() + b"\n"
    file = stack.client.files.create(file=("i.jsonl", content), purpose="batch")
    job = stack.client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    done = watch(stack.client, job.id, ended)
    assert done.status == "completed"
    assert_conserved(stack.client, done, 2)
    (line,) = lines_of(stack.client, done.error_file_id)
    assert line["custom_id"] == "item-1"
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["type"] == "invalid_request_error"


def test_an_item_larger_than_a_record_is_executed(stack: Stack) -> None:
    content = chat_line(0, stack.model, text="x" * 900_000) + chat_line(1, stack.model)
    file = stack.client.files.create(file=("i.jsonl", content), purpose="batch")
    job = stack.client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    done = watch(stack.client, job.id, ended)
    assert done.status == "completed"
    assert_conserved(stack.client, done, 2)


def test_a_cancelled_job_keeps_its_finished_items(stack: Stack) -> None:
    job = submit(stack.client, stack.model, 8000)
    watch(stack.client, job.id, lambda j: bool(j.request_counts and j.request_counts.completed))
    cancelling = stack.client.batches.cancel(job.id)
    assert cancelling.status in {"cancelling", "cancelled"}
    done = watch(stack.client, job.id, ended)
    assert done.status == "cancelled"
    assert_conserved(stack.client, done, 8000)
    outcomes = outcomes_of(done)
    assert outcomes["succeeded"] > 0
    assert outcomes["cancelled"] > 0
    line = lines_of(stack.client, done.error_file_id)[-1]
    assert line["response"] is None
    assert line["error"]["code"] == "batch_cancelled"
    with pytest.raises(BadRequestError):
        stack.client.batches.cancel(job.id)


def test_a_job_cancelled_before_validation_has_a_line_for_every_item(stack: Stack) -> None:
    job = submit(stack.client, stack.model, 3000)
    stack.client.batches.cancel(job.id)
    done = watch(stack.client, job.id, ended)
    assert done.status == "cancelled"
    assert_conserved(stack.client, done, 3000)


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
