"""The states of a job and their transitions, enforced by the database as well.

validating ──► in_progress ──► finalizing ──► completed | expired
    │  │            │              │
    │  └► failed    ▼              ▼
    └─────────► cancelling ◄───────┘ ──► cancelled
"""

from enum import StrEnum


class JobKind(StrEnum):
    """How a job was submitted."""

    BATCH = "batch"  # a file of items
    REQUEST = "request"  # a single item; its answer is read, not downloaded


class JobState(StrEnum):
    """The state of a job; the value is stored and shown as `status`."""

    VALIDATING = "validating"  # accepted; intake reads its input file
    IN_PROGRESS = "in_progress"  # valid; items are expanded and executed
    FINALIZING = "finalizing"  # every item has its row; files are being written
    CANCELLING = "cancelling"  # closed by its owner; items without a row get one
    COMPLETED = "completed"
    FAILED = "failed"  # the input file is not valid; nothing was executed
    EXPIRED = "expired"
    CANCELLED = "cancelled"


NEXT_STATES: dict[JobState, frozenset[JobState]] = {
    JobState.VALIDATING: frozenset({JobState.IN_PROGRESS, JobState.FAILED, JobState.CANCELLING}),
    JobState.IN_PROGRESS: frozenset({JobState.FINALIZING, JobState.CANCELLING}),
    JobState.FINALIZING: frozenset({JobState.COMPLETED, JobState.EXPIRED, JobState.CANCELLING}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.EXPIRED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

TERMINAL_STATES = frozenset(state for state, after in NEXT_STATES.items() if not after)


class CloseReason(StrEnum):
    """Why a job accepts no more results; the first reason wins (ADR 1)."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILURE_BUDGET = "failure_budget"  # more items failed than its owner allows
    SPEND_CAP = "spend_cap"  # its items took the tokens that its owner allows
    CRASH_BUDGET = "crash_budget"  # its items crashed more processes than a job may


STOPPED_EARLY = frozenset(
    {
        CloseReason.CANCELLED,
        CloseReason.FAILURE_BUDGET,
        CloseReason.SPEND_CAP,
        CloseReason.CRASH_BUDGET,
    }
)
"""Reasons that move a job to `cancelling`; an expired job stays in progress."""


def can_move(current: JobState, target: JobState) -> bool:
    """Whether `target` may follow `current`; a repeated state is a harmless redelivery."""
    return target is current or target in NEXT_STATES[current]
