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


def test_simulated_models_are_marked(stack: Stack) -> None:
    models = stack.client.models.list().data
    assert [model.owned_by for model in models] == ["millrace-simulated"]


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


def test_an_invalid_file_fails_with_line_and_code(stack: Stack) -> None:
    good = chat_line(0, stack.model)
    content = good + b"{not json}\n" + good
    file = stack.client.files.create(file=("i.jsonl", content), purpose="batch")
    job = stack.client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    done = watch(stack.client, job.id, ended)
    assert done.status == "failed"
    assert done.errors is not None
    found = [(e.line, e.code) for e in done.errors.data or []]
    assert found == [(2, "invalid_json_line"), (3, "duplicate_custom_id")]


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


def test_an_unknown_id_is_not_found(stack: Stack) -> None:
    with pytest.raises(NotFoundError):
        stack.client.batches.retrieve("batch_" + "0" * 32)


@pytest.mark.timeout(400)
def test_a_second_stack_is_independent_survives_sigkill_and_stops_quickly(
    stack: Stack, tmp_path: Path
) -> None:
    options = ("--simulated-latency-ms", "20", "--simulated-concurrency", "16")
    first = start_stack(tmp_path / "data", *options)
    assert first.url != stack.url
    job = submit(first.client, first.model, 4000)
    with pytest.raises(NotFoundError):
        stack.client.batches.retrieve(job.id)
    watch(first.client, job.id, lambda j: bool(j.request_counts and j.request_counts.completed))
    first.kill_everything()
    with running_stack(tmp_path / "data", *options) as restarted:
        assert restarted.key == first.key
        done = watch(restarted.client, job.id, ended)
        assert done.status == "completed"
        assert_conserved(restarted.client, done, 4000)
        assert restarted.stop() < STOP_S_MAX + 5
