"""P6 and P9: what happened to jobs in one round, as the triggers and the watchers saw it."""

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

import sqlalchemy as sa

from chaos.checkers.fencing import backward_moves, zombie_writes
from chaos.checkers.states import contradictory_observations, illegal_transitions
from chaos.clients.history import Operation
from chaos.observations import database
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
    """Rows of a table in the order of their sequence; each is new once."""

    def __init__(self) -> None:
        """Nothing is seen yet."""
        self._seen: set[int] = set()

    def of(self, rows: Iterable[R]) -> list[R]:
        """Return the rows that are new; one that was committed late is new when it is there."""
        fresh = [row for row in rows if row.sequence not in self._seen]
        self._seen |= {row.sequence for row in fresh}
        return fresh


class LifecycleChecker:
    """The rows that the triggers of one installation write, each of them judged once."""

    def __init__(self, engine: sa.Engine) -> None:
        """Nothing is judged yet."""
        self._engine = engine
        self._moves, self._writes, self._cursors = UnseenRows(), UnseenRows(), UnseenRows()

    def judge(self, history: Iterable[Operation]) -> list[Measure]:
        """Return the measures of P6 and P9 over what came since the last call."""
        moves = self._moves.of(database.transitions(self._engine))
        wrong = illegal_transitions(moves, GRAPH)
        seen = [step for step in history if step.op == "watch" and step.phase == "ok"]
        back = contradictory_observations(seen, GRAPH)
        steps = database.lease_events(self._engine)
        writes = self._writes.of(step for step in steps if not step.claims)
        fresh = {step.sequence for step in writes}
        # Who holds a lease may have claimed it in an earlier round.
        zombies = [step for step in zombie_writes(steps) if step.sequence in fresh]
        cursors = self._cursors.of(database.cursor_moves(self._engine))
        return [
            Measure(
                promise="P6",
                what="illegal transitions, as the database saw them",
                value=len(wrong),
                size=len(moves),
                evidence="; ".join(
                    f"{m.job}: {m.old}-{m.new} {m.changed_stamps}" for m in wrong[:5]
                ),
            ),
            Measure(
                promise="P6",
                what="observations that contradict earlier ones",
                value=len(back),
                size=len(seen),
                evidence="; ".join(back[:5]),
            ),
            Measure(
                promise="P9",
                what="writes accepted from an old epoch",
                value=len(zombies),
                size=len(writes),
                evidence="; ".join(f"{z.job} {z.role} by {z.user}" for z in zombies[:5]),
            ),
            Measure(
                promise="P9",
                what="cursors that went back",
                value=len(backward_moves(cursors)),
                size=len(cursors),
            ),
        ]
