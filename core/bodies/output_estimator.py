"""Learns how many tokens a sequence of a tenant's requests has, from results. Pure."""

from collections import OrderedDict
from typing import Final
from uuid import UUID

from core.bodies.token_estimates import RequestedTokens

OUTPUT_TOKENS_PRIOR: Final = 256.0
"""Tokens of a sequence while no result is known: after the start of a process, or of a new model.
"""

_NEWEST_WEIGHT_MIN: Final = 0.05  # so that about the last 20 results count
_MEANS_MAX: Final = 20_000  # the one that was used least recently is forgotten

MeanKey = tuple[UUID | None, str, str]
"""Tenant (None: all tenants), model and endpoint."""


class _Mean:
    """A mean of results in which older ones count less; what it starts with counts as one."""

    __slots__ = ("count", "tokens")

    def __init__(self, tokens: float) -> None:
        self.tokens, self.count = tokens, 1

    def add(self, tokens: float) -> None:
        self.count += 1
        self.tokens += (tokens - self.tokens) * max(_NEWEST_WEIGHT_MIN, 1 / self.count)


class OutputEstimator:
    """The expected output of a sequence, by tenant, model and endpoint.

    A tenant without results gets the mean of all tenants, and without any the prior.
    """

    def __init__(self) -> None:
        self._means: OrderedDict[MeanKey, _Mean] = OrderedDict()

    def expected(self, tenant_id: UUID, model: str, endpoint: str) -> float:
        """Return the expected output tokens of one sequence."""
        for owner in (tenant_id, None):
            if (mean := self._means.get((owner, model, endpoint))) is not None:
                return mean.tokens
        return OUTPUT_TOKENS_PRIOR

    def add_result(
        self,
        tenant_id: UUID,
        model: str,
        endpoint: str,
        requested: RequestedTokens,
        output_tokens: int,
    ) -> None:
        """Learn from a request that succeeded.

        An output that its limit cut off would have been longer: it can raise a mean only.
        """
        if not requested.sequences:
            return
        tokens = output_tokens / requested.sequences
        is_cut = requested.limit is not None and tokens >= requested.limit
        before = self.expected(tenant_id, model, endpoint)
        for owner in (None, tenant_id):
            key = (owner, model, endpoint)
            mean = self._means.get(key)
            if is_cut and tokens < (before if mean is None else mean.tokens):
                continue
            if mean is None:
                mean = self._means[key] = _Mean(before)
                if len(self._means) > _MEANS_MAX:
                    self._means.popitem(last=False)
            else:
                self._means.move_to_end(key)
            mean.add(tokens)

    def recent(self, count_max: int) -> list[tuple[MeanKey, float]]:
        """Return the means that were updated last, the newest first."""
        newest = list(reversed(self._means.items()))[:count_max]
        return [(key, mean.tokens) for key, mean in newest]
