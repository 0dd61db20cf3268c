"""P6 and P9: state transitions and lease writes of jobs, as triggers and watchers saw them."""

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

import sqlalchemy as sa

from chaos.checkers.fencing import backward_moves, zombie_writes
from chaos.checkers.states import contradictory_observations, illegal_transitions
from chaos.clients.history import Operation
from chaos.observations.triggers import cursor_moves, lease_events, transitions
from chaos.reports.measures import Measure
from core.states import NEXT_STATES

GRAPH: Final = {
    state.value: frozenset(after.value for after in later) for state, later in NEXT_STATES.items()
}


class _Row(Protocol):
    @property
    def sequence(self) -> int: ...


R = TypeVar("R", bound=_Row)


class UnseenRows:
    """Filters rows by their sequence number, so that each is processed once."""

    def __init__(self) -> None:
        """Treat every row as unseen."""
        self._seen: set[int] = set()

    def filter(self, rows: Iterable[R]) -> list[R]:
        """Return the unseen rows, including rows whose transaction committed late."""
        unseen = [row for row in rows if row.sequence not in self._seen]
        self._seen |= {row.sequence for row in unseen}
        return unseen


class LifecycleChecker:
    """Checks the rows that the triggers of one installation write, each row once."""

    def __init__(self, engine: sa.Engine) -> None:
        """Start with all rows unchecked."""
        self._engine = engine
        self._transitions, self._writes, self._moves = UnseenRows(), UnseenRows(), UnseenRows()

    def check(self, history: Iterable[Operation]) -> list[Measure]:
        """Return the measures of P6 and P9 over the rows since the last call."""
        moves = self._transitions.filter(transitions(self._engine))
        illegal = illegal_transitions(moves, GRAPH)
        observed = [step for step in history if step.op == "watch" and step.phase == "ok"]
        contradictions = contradictory_observations(observed, GRAPH)
        events = lease_events(self._engine)
        writes = self._writes.filter(event for event in events if not event.claims)
        unseen = {event.sequence for event in writes}
        # The holder of a lease may have claimed it in an earlier round.
        zombies = [event for event in zombie_writes(events) if event.sequence in unseen]
        cursors = self._moves.filter(cursor_moves(self._engine))
        return [
            Measure(
                "P6",
                "illegal transitions, as the database saw them",
                len(illegal),
                size=len(moves),
                evidence="; ".join(
                    f"{m.job}: {m.old}-{m.new} {m.changed_stamps}" for m in illegal[:5]
                ),
            ),
            Measure(
                "P6",
                "observations that contradict earlier ones",
                len(contradictions),
                size=len(observed),
                evidence="; ".join(contradictions[:5]),
            ),
            Measure(
                "P9",
                "writes accepted from an old epoch",
                len(zombies),
                size=len(writes),
                evidence="; ".join(f"{z.job} {z.role} by {z.user}" for z in zombies[:5]),
            ),
            Measure(
                "P9", "cursors that went back", len(backward_moves(cursors)), size=len(cursors)
            ),
        ]
