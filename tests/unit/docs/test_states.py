"""Goal: the page draws the states as the code has them."""

import re
from pathlib import Path

from core.states import NEXT_STATES, TERMINAL_STATES

PAGE = Path(__file__).parents[3] / "docs/job_controls.md"
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", re.M)


def test_the_table_lists_every_state_and_where_it_leads() -> None:
    section = PAGE.read_text().partition("## States")[2].partition("\n## ")[0]
    listed = {name: set(re.findall(r"`(\w+)`", after)) for name, after in ROW.findall(section)}

    assert listed == {
        state.value: {target.value for target in after} for state, after in NEXT_STATES.items()
    }


def test_the_drawing_names_every_state() -> None:
    drawing = PAGE.read_text().partition("```")[2].partition("```")[0]

    assert set(re.findall(r"[a-z_]+", drawing)) == {state.value for state in NEXT_STATES}
    assert all(f"{state} ──►" not in drawing for state in TERMINAL_STATES)
