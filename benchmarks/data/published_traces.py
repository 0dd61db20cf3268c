"""Lengths and arrivals with the distributions of published traces, reproducible by a seed.

These are no traces: each length is drawn independently from quantiles that were computed from the
published files, by the inverse of the distribution function, log-linear between two quantiles.

Azure LLM inference traces 2023, files `AzureLLMInferenceTrace_code.csv` (8,819 requests in 57 min)
and `AzureLLMInferenceTrace_conv.csv` (19,366 in 58 min), github.com/Azure/AzurePublicDataset,
described in Patel et al., "Splitwise" (ISCA 2024). Prompt and output are nearly uncorrelated in
both (Pearson 0.00 and -0.11). Gaps between conversations have a coefficient of variation of 1.09,
which is a Gamma distribution of shape 0.94 in windows of a minute. BurstGPT (Wang et al., 2024,
arXiv 2401.17644) generates bursts with a shape of 0.5.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

LEVELS: Final = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
"""Percents of the quantiles below."""


class Lengths(NamedTuple):
    """The tokens of one request."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Quantiles of a trace at `LEVELS`."""

    name: str
    prompt: Sequence[int]
    output: Sequence[int]


AZURE_CODE: Final = Trace(
    "Azure 2023 code",
    prompt=(3, 17, 75, 147, 385, 770, 1075, 1469, 1909, 2433, 3192, 5187, 7303, 7436, 7437),
    output=(6, 6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 251, 1899),
)
AZURE_CONVERSATION: Final = Trace(
    "Azure 2023 conversation",
    prompt=(2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 14050),
    output=(7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 1000),
)

CONVERSATION_GAP_SHAPE: Final = 0.94
BURST_GAP_SHAPE: Final = 0.5


def quantile(values: Sequence[int], percent: float) -> float:
    """Return a quantile between those at `LEVELS`, log-linear; `percent` is from 0 to 100."""
    upper = min(max(1, bisect_right(LEVELS, percent)), len(LEVELS) - 1)
    low, high = LEVELS[upper - 1], LEVELS[upper]
    part = (percent - low) / (high - low)
    return math.exp((1 - part) * math.log(values[upper - 1]) + part * math.log(values[upper]))


def draw_lengths(trace: Trace, count: int, *, seed: int) -> list[Lengths]:
    """Return the lengths of `count` requests."""
    rng = random.Random(seed)
    return [
        Lengths(
            max(1, round(quantile(trace.prompt, rng.uniform(0, 100)))),
            max(1, round(quantile(trace.output, rng.uniform(0, 100)))),
        )
        for _ in range(count)
    ]


def arrival_times(rate_per_s: float, seconds: float, *, shape: float, seed: int) -> Iterator[float]:
    """Yield ascending times below `seconds`, with gaps of a Gamma distribution of this shape."""
    rng = random.Random(seed)
    time_s = rng.gammavariate(shape, 1 / (shape * rate_per_s))
    while time_s < seconds:
        yield time_s
        time_s += rng.gammavariate(shape, 1 / (shape * rate_per_s))
