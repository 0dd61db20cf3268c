"""Kills a role during a job and checks the job's result."""

import random
from dataclasses import dataclass

from tests.support.job_checks import assert_conserved, assert_succeeded, ended, submit, watch
from tests.support.stacks import Stack
from topics.records.catalogue import RESULTS
from topics.records.codec import decode_value, kind_of
from topics.records.records import Outcomes
from topics.tail_readers.topic_tail_reader import TopicTailReader

ITEM_COUNT = 5000


@dataclass(frozen=True, slots=True)
class Killed:
    """The result of a job whose role was killed."""

    killed_at: int  # items that had ended
    published: int  # outcomes on the log, repeated ones included

    @property
    def repeated(self) -> int:
        """Return the number of repeated outcomes, which is repeated work."""
        return self.published - ITEM_COUNT


def kill_in_the_middle(stack: Stack, role: str, seed: int) -> Killed:
    """Run a job, kill `role` at a seeded moment, and check that every item ends once."""
    at = random.Random(seed).randrange(ITEM_COUNT // 10, ITEM_COUNT * 8 // 10)
    client = stack.client
    job = submit(client, stack.model, ITEM_COUNT)
    seen = watch(client, job.id, lambda j: _done(j) >= (0 if role == "api" else at))
    stack.kill(role)
    done = watch(client, job.id, ended)
    assert done.status == "completed", done
    assert_conserved(client, done, ITEM_COUNT)
    assert_succeeded(client, done, stack.model, ITEM_COUNT)
    return Killed(_done(seen), published_outcomes(stack, job.id))


def published_outcomes(stack: Stack, job_id: str) -> int:
    """Count the outcomes of a job on the log."""
    tail = TopicTailReader(
        stack.kafka,
        RESULTS,
        client_id="test-results",
    )
    count = 0
    for record in tail.read_to_end(30):
        if kind_of(record.headers) != "outcomes":
            continue
        outcomes = decode_value(Outcomes, record.value)
        if f"batch_{outcomes.job.job_id.hex}" == job_id:
            count += len(outcomes.items)
    tail.close()
    return count


def _done(job: object) -> int:
    counts = job.request_counts  # type: ignore[attr-defined]
    return counts.completed + counts.failed if counts else 0
