"""P6 and P9: state transitions and lease writes of jobs, as triggers and watchers saw them."""

from collections.abc import Iterable
from typing import Final, TypeVar

import sqlalchemy as sa

from chaos.checkers.fencing import CursorMove, LeaseEvent, backward_moves, zombie_writes
from chaos.checkers.states import Transition, contradictory_observations, illegal_transitions
from chaos.clients.history import Operation
from chaos.measures import Measure, violations
from chaos.observations.triggers import cursor_moves, lease_events, transitions
from core.states import NEXT_STATES

GRAPH: Final = {
    state.value: frozenset(after.value for after in later) for state, later in NEXT_STATES.items()
}


R = TypeVar("R", Transition, LeaseEvent, CursorMove)


def unseen_rows(rows: Iterable[R], seen: set[int]) -> list[R]:
    """Return the rows whose sequence number is not in `seen`, and add it.

    Rows whose transaction committed late are unseen, too.
    """
    unseen = [row for row in rows if row.sequence not in seen]
    seen |= {row.sequence for row in unseen}
    return unseen


class LifecycleChecker:
    """Checks the rows that the triggers of one installation write, each row once."""

    def __init__(self, engine: sa.Engine) -> None:
        """Start with all rows unchecked."""
        self._engine = engine
        self._transitions: set[int] = set()  # sequence numbers of checked rows
        self._writes: set[int] = set()
        self._cursors: set[int] = set()

    def check(self, history: Iterable[Operation]) -> list[Measure]:
        """Return the measures of P6 and P9 over the rows since the last call."""
        moves = unseen_rows(transitions(self._engine), self._transitions)
        illegal = [
            f"{move.job}: {move.old}-{move.new} {move.changed_stamps}"
            for move in illegal_transitions(moves, GRAPH)
        ]
        observed = [step for step in history if step.op == "watch" and step.phase == "ok"]
        events = lease_events(self._engine)
        writes = unseen_rows((event for event in events if not event.claims), self._writes)
        unseen = {event.sequence for event in writes}
        # The holder of a lease may have claimed it in an earlier round.
        zombies = [
            f"{event.job} {event.role} by {event.user}"
            for event in zombie_writes(events)
            if event.sequence in unseen
        ]
        cursors = unseen_rows(cursor_moves(self._engine), self._cursors)
        back = [f"{move.job}: {move.old}-{move.new}" for move in backward_moves(cursors)]
        return [
            violations(
                "P6", "illegal transitions, as the database saw them", illegal, size=len(moves)
            ),
            violations(
                "P6",
                "observations that contradict earlier ones",
                contradictory_observations(observed, GRAPH),
                size=len(observed),
            ),
            violations("P9", "writes accepted from an old epoch", zombies, size=len(writes)),
            violations("P9", "cursors that went back", back, size=len(cursors)),
        ]
