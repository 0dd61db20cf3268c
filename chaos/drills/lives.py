"""P6 and P9: the lives of all jobs so far, as the triggers and the watchers saw them."""

from typing import Final

from chaos import evidence
from chaos.drills.setting import Setting
from chaos.judges.fencing import cursors_that_went_back, zombie_writes
from chaos.judges.states import illegal, went_back
from chaos.measures import Measure
from core.states import NEXT_STATES

GRAPH: Final = {
    state.value: frozenset(after.value for after in later) for state, later in NEXT_STATES.items()
}


def judge_lives(setting: Setting) -> list[Measure]:
    """Return the measures of P6 and P9 that the triggers and the watchers give."""
    engine = setting.running.engine
    moves = evidence.transitions(engine)
    wrong = illegal(moves, GRAPH)
    history = list(setting.recorder.so_far())
    seen = [step for step in history if step.op == "watch" and step.phase == "ok"]
    back = went_back(history, GRAPH)
    steps = evidence.lease_steps(engine)
    zombies = zombie_writes(steps)
    cursors = evidence.cursor_steps(engine)
    return [
        Measure(
            promise="P6",
            what="illegal transitions, as the database saw them",
            value=len(wrong),
            size=len(moves),
            evidence="; ".join(f"{m.job}: {m.old}-{m.new} {m.changed_stamps}" for m in wrong[:5]),
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
            size=sum(not step.claims for step in steps),
            evidence="; ".join(f"{z.job} {z.role} by {z.user}" for z in zombies[:5]),
        ),
        Measure(
            promise="P9",
            what="cursors that went back",
            value=len(cursors_that_went_back(cursors)),
            size=len(cursors),
        ),
    ]
