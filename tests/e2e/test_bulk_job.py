"""Goal: a job runs from input file to output file through the real client, whatever its items."""

from tests.support.job_checks import assert_conserved, chat_line, create, ended, upload, watch
from tests.support.stacks import Stack


def test_an_item_larger_than_a_record_is_executed(stack: Stack) -> None:
    content = chat_line(0, stack.model, text="x" * 900_000) + chat_line(1, stack.model)
    job = create(stack.client, upload(stack.client, content))
    done = watch(stack.client, job.id, ended)
    assert done.status == "completed"
    assert_conserved(stack.client, done, 2)
