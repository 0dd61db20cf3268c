"""The engine time that a token takes, measured while the engine is full. Pure.

The busy time of a window is fitted to the tokens of the answers in it:

    busy seconds = prompt_token_s * uncached prompt tokens + output_token_s * output tokens

by least squares in which older windows count less. The two unknowns can be told apart only if the
mix of requests varies. A ridge term draws their ratio to `OUTPUT_WEIGHT_PRIOR` as far as it does
not (Hoerl and Kennard, "Ridge regression", Technometrics 12(1), 1970), and more strongly the fewer
windows there are: tokens count in the window in which their answer ends, though part of their time
was spent before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from core.compute import OUTPUT_WEIGHT_PRIOR
from topics.records.records import EndpointCompute

OUTPUT_WEIGHT_MIN: Final = 0.25
OUTPUT_WEIGHT_MAX: Final = 64.0
"""Bounds on the measured ratio of an output token to a prompt token."""

ENDPOINTS_MAX: Final = 16
"""Endpoints that are measured; more than the API has."""

_WINDOW_WEIGHT: Final = 0.98  # of all earlier windows; about the last 50 count
_RIDGE: Final = 0.01
_PRIOR_WINDOWS: Final = 0.25
"""Windows that the prior ratio counts for."""

_RATE_WEIGHT: Final = 0.3
"""Weight of the newest full window in `ComputeRates.tokens_per_s`."""


@dataclass(slots=True)
class _Fit:
    """The sums of one endpoint's windows: prompt (p), output (o) and busy time (t)."""

    pp: float = 0.0
    po: float = 0.0
    oo: float = 0.0
    pt: float = 0.0
    ot: float = 0.0
    windows: float = 0.0  # older ones count less

    def add(self, prompt: float, output: float, busy_s: float) -> None:
        """Add a window."""
        keep = _WINDOW_WEIGHT
        self.windows = keep * self.windows + 1
        self.pp = keep * self.pp + prompt * prompt
        self.po = keep * self.po + prompt * output
        self.oo = keep * self.oo + output * output
        self.pt = keep * self.pt + prompt * busy_s
        self.ot = keep * self.ot + output * busy_s

    def solve(self) -> tuple[float, float]:
        """Return the seconds of a prompt token and of an output token; both are positive."""
        # On the scale of the smaller sum: prompts may have a hundred times as many tokens.
        smaller = self.pp * self.oo / (self.pp + self.oo) or self.pp + self.oo
        ridge = max(_RIDGE, _PRIOR_WINDOWS / self.windows) * smaller
        prior = OUTPUT_WEIGHT_PRIOR
        pp, po, oo = self.pp + ridge * prior * prior, self.po - ridge * prior, self.oo + ridge
        determinant = pp * oo - po * po
        prompt_s = (self.pt * oo - self.ot * po) / determinant
        output_s = (self.ot * pp - self.pt * po) / determinant
        weight = OUTPUT_WEIGHT_MAX if prompt_s <= 0 else output_s / prompt_s
        weight = min(max(weight, OUTPUT_WEIGHT_MIN), OUTPUT_WEIGHT_MAX)
        # With the ratio within its bounds, fit the scale again.
        cost_cost = self.pp + 2 * weight * self.po + weight * weight * self.oo
        prompt_s = (self.pt + weight * self.ot) / cost_cost
        return prompt_s, weight * prompt_s


@dataclass(slots=True)
class ComputeRates:
    """The rates of one replica and class, by endpoint."""

    tokens_per_s: float = 0.0
    """Weighted tokens of answers in a second of full windows, smoothed; 0 before the first one. An
    output token counts as `output_weight` prompt tokens; prompt tokens of a cache do not count."""
    _fits: dict[str, _Fit] = field(default_factory=dict)
    _rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    _window: dict[str, tuple[int, int]] = field(default_factory=dict)  # tokens, by endpoint
    _was_full: bool = False  # the window before this one

    def add_tokens(self, endpoint: str, prompt: int, output: int) -> None:
        """Count tokens of answers: prompt tokens that no cache held, and output tokens."""
        if not prompt and not output:
            return
        before = self._window.get(endpoint, (0, 0))
        if endpoint in self._window or len(self._window) < ENDPOINTS_MAX:
            self._window[endpoint] = before[0] + prompt, before[1] + output

    def close_window(self, busy_s: float, *, was_full: bool) -> None:
        """End a window in which the engine was busy for `busy_s`.

        A window without a full engine teaches nothing: its time depends on its arrivals. Nor does
        the first full one: the items with the shortest outputs end first, so its time has gone into
        outputs that are not counted yet. Endpoints that share a window share its time in the
        proportion of their expected costs.
        """
        window, self._window = self._window, {}
        is_first, self._was_full = not self._was_full, was_full
        if is_first or not was_full or busy_s <= 0:
            return
        self._add_rate(window, busy_s)
        costs = {endpoint: self._cost(endpoint, *tokens) for endpoint, tokens in window.items()}
        total = sum(costs.values())
        for endpoint, (prompt, output) in window.items():
            if len(self._fits) >= ENDPOINTS_MAX and endpoint not in self._fits:
                continue
            fit = self._fits.setdefault(endpoint, _Fit())
            fit.add(prompt, output, busy_s * costs[endpoint] / total)
            self._rates[endpoint] = fit.solve()

    def output_weight(self, endpoint: str) -> float:
        """Return how many prompt tokens an output token costs."""
        prompt_s, output_s = self._rates.get(endpoint, (1.0, OUTPUT_WEIGHT_PRIOR))
        return output_s / prompt_s

    def measured(self) -> list[EndpointCompute]:
        """Return the rates as the capacity record holds them."""
        return [EndpointCompute(endpoint, *rates) for endpoint, rates in self._rates.items()]

    def _add_rate(self, window: Mapping[str, tuple[int, int]], busy_s: float) -> None:
        tokens = sum(
            prompt + self.output_weight(endpoint) * output
            for endpoint, (prompt, output) in window.items()
        )
        if tokens:
            weight = _RATE_WEIGHT if self.tokens_per_s else 1.0
            self.tokens_per_s += weight * (tokens / busy_s - self.tokens_per_s)

    def _cost(self, endpoint: str, prompt: int, output: int) -> float:
        prompt_s, output_s = self._rates.get(endpoint, (1.0, OUTPUT_WEIGHT_PRIOR))
        return prompt * prompt_s + output * output_s
