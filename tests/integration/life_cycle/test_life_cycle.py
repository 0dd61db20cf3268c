"""Goal: in any order of operations, a job moves only along the published states.

A model of the documentation and a real job in Postgres run the same operations and agree after each
one; values set once stay, and in the end every item has its row. `LIFE_CYCLE_EXAMPLES` is the
number of examples of 50 steps, split over `LIFE_CYCLE_SHARDS` tests; promise P6 needs 2,000
(`make life-cycle`).
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.clock import SystemClock
from core.outcomes import Outcome
from core.states import TERMINAL_STATES, JobState, can_move
from jobs.errors import JobEndedError, JobNotOpenError, JobSealedError
from jobs.store.batches import cancel_job
from jobs.store.controls import JobChange, append_file, change_job, pause_job, resume_job, seal_job
from jobs.store.job_options import JobBudget
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.jobs.rows import add_tenant
from tests.integration.life_cycle.model import TOKENS, Appended, JobModel
from tests.integration.life_cycle.real_job import RealJob
from tests.integration.results.outcomes import assert_totals_agree

EXAMPLES = int(os.environ.get("LIFE_CYCLE_EXAMPLES", "50"))
SHARDS = int(os.environ.get("LIFE_CYCLE_SHARDS", "1"))
STEPS = 50

ONCE = (
    "in_progress_at", "settled_at", "finalizing_at", "cancelling_at",
    "completed_at", "failed_at", "expired_at", "cancelled_at",
)  # fmt: skip
OUTCOMES = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED)

counts = st.integers(1, 4)


class LifeCycle(RuleBasedStateMachine):
    """The operations on one job."""

    def __init__(self, real: Callable[[], RealJob]) -> None:
        super().__init__()
        self.real = real()
        self.last: sa.Row[Any] | None = None
        self.model = JobModel(0, True, None, None)

    @initialize(
        count=counts,
        sealed=st.booleans(),
        max_failed=st.none() | st.integers(0, 2),
        max_tokens=st.none() | st.integers(1, 5 * TOKENS),
    )
    def create(
        self, count: int, sealed: bool, max_failed: int | None, max_tokens: int | None
    ) -> None:
        budget = JobBudget(max_failed_items=max_failed, max_total_tokens=max_tokens)
        self.real.create(count, sealed=sealed, budget=budget)
        self.model = JobModel(count, sealed, max_failed, max_tokens)

    @precondition(lambda self: self.model.awaits_verdict)
    @rule(is_valid=st.sampled_from([True, True, True, False]))
    def validate(self, is_valid: bool) -> None:
        self.real.validate_first(self.model.count, is_valid=is_valid)
        self.model.validate_first(is_valid=is_valid)

    @precondition(
        lambda self: (
            self.model.pending
            and self.model.state is JobState.IN_PROGRESS
            and self.model.reason is None
        )
    )
    @rule(is_valid=st.booleans())
    def validate_appended(self, is_valid: bool) -> None:
        self.real.validate_appended_file(self.model.pending[0].count, is_valid=is_valid)
        self.model.validate_appended_file(is_valid=is_valid)

    @rule(
        indexes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
        kind=st.sampled_from([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED]),
    )
    def write(self, indexes: list[int], kind: Outcome) -> None:
        self.real.write(indexes, kind)
        self.model.write(indexes, kind)

    @precondition(lambda self: self.model.closes)
    @rule()
    def read_close(self) -> None:
        self.real.read_close()
        self.model.read_close()

    @rule()
    def cancel(self) -> None:
        if self.model.cancel():
            self.real.control(cancel_job)
        else:
            with pytest.raises(JobEndedError):
                self.real.control(cancel_job)

    @rule()
    def pause(self) -> None:
        self.controlled(pause_job)
        self.model.paused |= self.model.is_open

    @rule()
    def resume(self) -> None:
        self.controlled(resume_job)
        self.model.paused &= not self.model.is_open

    @rule(window=st.sampled_from(["1h", "24h", "30d"]), priority=st.integers(0, 9))
    def change(self, window: str, priority: int) -> None:
        change = JobChange(completion_window=window, priority=priority)
        self.controlled(partial(change_job, change=change))

    @rule(count=counts)
    def append(self, count: int) -> None:
        operation = partial(append_file, file_id=self.real.file(count))
        if self.model.is_open and self.model.sealed:
            with pytest.raises(JobSealedError):
                self.real.control(operation)
        elif self.controlled(operation):
            self.model.appended.append(Appended(count))

    @rule()
    def seal(self) -> None:
        if self.controlled(seal_job):
            self.model.seal()

    @precondition(lambda self: self.model.is_open)
    @rule(is_true=st.sampled_from([True, False, False]))
    def let_expire(self, is_true: bool) -> None:
        if is_true:
            self.real.let_expire()
            self.model.is_past = True

    @rule()
    def sweep(self) -> None:
        self.real.sweep()
        self.model.sweep()

    @precondition(lambda self: self.model.settled and self.model.state not in TERMINAL_STATES)
    @rule()
    def finalise(self) -> None:
        state = self.real.finalise()
        self.model.finalise()
        assert state is self.model.state

    @invariant()
    def check_agreement(self) -> None:
        row, model = self.real.row(), self.model
        assert row.state == model.state
        assert row.close_reason == model.reason
        assert (row.total_count, row.total_final) == (model.total, model.final)
        assert row.sealed == model.sealed
        assert (row.settled_at is not None, row.paused_at is not None) == (
            model.settled,
            model.paused,
        )
        assert [getattr(row, kind.label) for kind in OUTCOMES] == [
            model.counted(kind) for kind in OUTCOMES
        ]
        assert self.real.files() == [
            (file.state, file.count if file.state == "accepted" else None)
            for file in model.appended
        ]
        assert [close.reason for close in self.real.closes()] == [model.reason] * model.closes
        self.check_times_and_state(row)

    def check_times_and_state(self, row: sa.Row[Any]) -> None:
        """States follow the table; times are set once and in order."""
        times = [row.created_at, *(getattr(row, name) for name in ONCE[:3])]
        known = [time for time in times if time is not None]
        assert known == sorted(known)
        if self.last is not None:
            assert can_move(JobState(self.last.state), JobState(row.state))
            for name in ONCE:
                before = getattr(self.last, name)
                assert before is None or getattr(row, name) == before
            if self.last.state in TERMINAL_STATES:
                assert row.state == self.last.state
        self.last = row

    def controlled(self, operation: Callable[..., Any]) -> bool:
        """Run an operation of the owner; return whether the job was open."""
        if self.model.is_open:
            self.real.control(operation)
            return True
        with pytest.raises(JobNotOpenError):
            self.real.control(operation)
        return False

    def teardown(self) -> None:
        """End an open job; every item has one line in the files."""
        self.end()
        assert self.model.state in TERMINAL_STATES
        assert len(self.model.rows) == (self.model.total or 0)
        assert_totals_agree(self.real.engine, self.real.job_id)
        self.real.clean_up()

    def end(self) -> None:
        model = self.model
        if model.awaits_verdict:
            self.run_step(self.validate, is_valid=True)
        while model.pending and model.state is JobState.IN_PROGRESS:
            self.run_step(self.validate_appended, is_valid=True)
        if model.is_open:
            self.run_step(self.seal)
        if model.is_open:
            self.run_step(self.let_expire, is_true=True)
        self.run_step(self.sweep)
        while model.closes:
            self.run_step(self.read_close)
        if model.settled and model.state not in TERMINAL_STATES:
            self.run_step(self.finalise)

    def run_step(self, step: Callable[..., None], **given: bool) -> None:
        """Run one more step and check, as Hypothesis does between steps."""
        step(**given)
        self.check_agreement()


@pytest.mark.timeout(300 + 10 * EXAMPLES // SHARDS)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_job_follows_the_documented_life_cycle(
    engine: sa.Engine, tmp_path: Path, shard: int
) -> None:
    store = LocalObjectStore(tmp_path / "objects", clock=SystemClock())
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
    run_state_machine_as_test(
        partial(LifeCycle, lambda: RealJob(engine, store, tenant_id)),  # type: ignore[arg-type]
        settings=settings(
            max_examples=EXAMPLES // SHARDS + (shard < EXAMPLES % SHARDS),
            stateful_step_count=STEPS,
            deadline=None,
            # Derandomised shards would all run the same examples.
            derandomize=SHARDS == 1 and settings().derandomize,
            suppress_health_check=list(HealthCheck),
        ),
    )
