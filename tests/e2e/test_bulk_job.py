"""Goal: a user's job runs from file to output file through the real client, whatever is in it."""

import json
import time
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


def test_every_answer_comes_once_and_in_order(stack: Stack) -> None:
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


def test_the_simulated_engine_says_so(stack: Stack) -> None:
    models = stack.client.models.list().data
    assert [model.owned_by for model in models] == ["millrace-simulated"]


def test_a_failing_item_goes_to_the_error_file_with_its_answer(stack: Stack) -> None:
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


def test_a_bad_file_fails_with_the_line_and_the_field(stack: Stack) -> None:
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


def test_cancel_in_the_middle_keeps_what_is_finished(stack: Stack) -> None:
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


def test_cancel_before_validation_gives_every_item_its_line(stack: Stack) -> None:
    job = submit(stack.client, stack.model, 3000)
    stack.client.batches.cancel(job.id)
    done = watch(stack.client, job.id, ended)
    assert done.status == "cancelled"
    assert_conserved(stack.client, done, 3000)


@pytest.mark.timeout(300)
def test_an_expired_job_keeps_what_is_finished(stack: Stack) -> None:
    # Its places execute 3,200 items a second at most: most of these are left when it expires.
    job = submit(stack.client, stack.model, 40_000)
    watch(stack.client, job.id, lambda j: bool(j.request_counts and j.request_counts.completed))
    soon = int(time.time()) + 4
    stack.client.post(f"/batches/{job.id}", body={"expires_at": soon}, cast_to=type(job))
    done = watch(stack.client, job.id, ended)
    assert done.status == "expired"
    assert_conserved(stack.client, done, 40_000)
    assert outcomes_of(done)["expired"] > 0
    assert outcomes_of(done)["succeeded"] > 0


def test_a_foreign_id_answers_as_one_that_never_existed(stack: Stack) -> None:
    with pytest.raises(NotFoundError):
        stack.client.batches.retrieve("batch_" + "0" * 32)


@pytest.mark.timeout(400)
def test_the_same_data_goes_on_after_a_kill_of_everything(tmp_path: Path) -> None:
    options = ("--simulated-latency-ms", "20", "--simulated-concurrency", "16")
    first = start_stack(tmp_path / "data", *options)
    job = submit(first.client, first.model, 4000)
    watch(first.client, job.id, lambda j: bool(j.request_counts and j.request_counts.completed))
    first.kill_everything()
    with running_stack(tmp_path / "data", *options) as again:
        assert again.key == first.key
        done = watch(again.client, job.id, ended)
        assert done.status == "completed"
        assert_conserved(again.client, done, 4000)


@pytest.mark.timeout(300)
def test_two_stacks_run_side_by_side_and_stop_quickly(stack: Stack, tmp_path: Path) -> None:
    with running_stack(tmp_path / "other") as other:
        assert other.url != stack.url
        done = watch(other.client, submit(other.client, other.model, 20).id, ended)
        assert done.status == "completed"
        with pytest.raises(NotFoundError):
            stack.client.batches.retrieve(done.id)
        assert other.stop() < STOP_S_MAX + 5
