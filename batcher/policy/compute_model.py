"""What a request costs a pool's engines: the weight of output tokens, and seconds of a batch. Pure.

Replicas publish what they measured (`gpu_consumers.flow_control.compute_rates`). A pool or endpoint
that was not measured has the priors of `core.compute`.
"""

import math
from collections import OrderedDict
from typing import Final

from core.compute import OUTPUT_WEIGHT_PRIOR, PROMPT_TOKEN_S_PRIOR
from topics.records.records import Capacity

_NEWEST_WEIGHT: Final = 0.1  # of one record in the mean of a pool, which has many replicas
_ENTRIES_MAX: Final = 10_000  # the one that was measured least recently is forgotten

PRIOR: Final = (PROMPT_TOKEN_S_PRIOR, OUTPUT_WEIGHT_PRIOR * PROMPT_TOKEN_S_PRIOR)


class ComputeModel:
    """The seconds of a prompt token and of an output token, by pool and endpoint."""

    def __init__(self) -> None:
        """Start with priors."""
        self._rates: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def record_capacity(self, capacity: Capacity) -> None:
        """Apply what a replica measured."""
        for one in capacity.compute:
            key = capacity.pool, one.endpoint
            newest = one.prompt_token_s, one.output_token_s
            if not all(0 < seconds < math.inf for seconds in newest):
                continue
            prompt_s, output_s = self._rates.get(key, newest)
            self._rates[key] = (
                prompt_s + _NEWEST_WEIGHT * (one.prompt_token_s - prompt_s),
                output_s + _NEWEST_WEIGHT * (one.output_token_s - output_s),
            )
            self._rates.move_to_end(key)
            if len(self._rates) > _ENTRIES_MAX:
                self._rates.popitem(last=False)

    def output_weight(self, pool: str, endpoint: str) -> float:
        """Return how many prompt tokens an output token costs."""
        prompt_s, output_s = self._rates.get((pool, endpoint), PRIOR)
        return output_s / prompt_s

    def batch_s(self, capacity: Capacity, endpoint: str, *, prompt: float, output: float) -> float:
        """Return the seconds until a replica has executed a batch of so many tokens.

        The items before it, as many as run at once, leave at the measured rate. The batch then
        takes the engine for its tokens.
        """
        prompt_s, output_s = self._rates.get((capacity.pool, endpoint), PRIOR)
        waits_s = capacity.concurrency / capacity.items_per_s if capacity.items_per_s > 0 else 0.0
        return waits_s + prompt * prompt_s + output * output_s
