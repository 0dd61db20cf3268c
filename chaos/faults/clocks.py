"""A host whose wall clock is wrong.

Not by libfaketime: under it librdkafka's clients wait for as long as the clock is ahead, which no
host with a wrong clock does. So Python's own clock is shifted, in every role of the host.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

SKEW_S: Final = 400
FOLDER: Final = Path(__file__).parents[1] / "skewed"
"""On the PYTHONPATH of every host; it does nothing without the variable."""


def skewed(seconds: float) -> Mapping[str, str]:
    """Return the variables of a host whose clock is `seconds` ahead; behind when negative."""
    return {"CHAOS_CLOCK_OFFSET_S": str(seconds)}
