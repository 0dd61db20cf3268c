"""A host whose wall clock is wrong.

libfaketime is no option: under it librdkafka's clients wait for as long as the clock is ahead,
which no host with a wrong clock does. Instead, Python's clock is shifted in every role of the host.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

SKEW_S: Final = 400
FOLDER: Final = Path(__file__).parents[1] / "skewed"
"""Lies on the PYTHONPATH of every host; it has no effect without the variable of `skewed`."""


def skewed(seconds: float) -> Mapping[str, str]:
    """Return the environment of a host whose clock is `seconds` ahead; behind when negative."""
    return {"CHAOS_CLOCK_OFFSET_S": str(seconds)}
