"""How many bulk items vLLM gets at once: a window that follows the engine's own load. Pure.

The window halts and shrinks before the KV cache is full, because vLLM then preempts sequences and
computes them again from their start. It shrinks to 0.8 of what runs and grows by a few items
(additive increase, multiplicative decrease: Chiu and Jain 1989), and once more only after the
engine has followed the change.
"""

import math
from dataclasses import dataclass
from typing import Final

KV_USAGE_MAX: Final = 0.9
"""Used share of the KV cache from which the window shrinks. Running sequences still grow."""

KV_USAGE_GROWTH_MAX: Final = 0.8
"""Used share of the KV cache up to which the window may grow."""

ROUND_S: Final = 0.5
"""The least time between two changes of the window."""

_DECREASE: Final = 0.8
_INCREASE_DIVISOR: Final = 32  # of the largest window
_FULL_SHARE: Final = 0.95  # of the window in use, from which the window limits the engine


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine reported of the steps since the last report."""

    running: int  # sequences in a step
    waiting: int  # sequences that wait in the engine
    kv_usage: float  # share of the KV cache that running sequences use, 0 to 1
    preempted: int = 0  # sequences that lost their KV cache
    token_s: float | None = None  # 95th percentile of the time between two tokens of a sequence


class BulkWindow:
    """The window of one engine; times are monotonic seconds."""

    def __init__(
        self, size_max: int, *, sequences_max: int, token_s_max: float | None = None
    ) -> None:
        """At most `sequences_max` sequences run in one step.

        Tokens slower than `token_s_max` shrink the window.
        """
        self.size = self._size_max = size_max
        self._sequences_max, self._token_s_max = sequences_max, token_s_max
        self._changed_s = -math.inf

    def update(self, load: EngineLoad, *, in_use: int, now_s: float) -> int:
        """Return the window after a report; `in_use` bulk items are in the engine."""
        if now_s - self._changed_s < ROUND_S:
            return self.size
        if self._is_overloaded(load):
            # Items above a smaller window leave as they end; to shrink again would not help.
            if 0 < in_use <= self.size:
                fitting = min(in_use, max(1, load.running))
                self._resize(max(1, int(fitting * _DECREASE)), now_s)
        elif in_use >= _FULL_SHARE * self.size and not self._is_near_limit(load):
            step = max(1, self._size_max // _INCREASE_DIVISOR)
            self._resize(min(self._size_max, self.size + step), now_s)
        return self.size

    def _is_overloaded(self, load: EngineLoad) -> bool:
        is_slow = (
            self._token_s_max is not None
            and load.token_s is not None
            and load.token_s > self._token_s_max
        )
        return load.preempted > 0 or load.kv_usage > KV_USAGE_MAX or is_slow

    def _is_near_limit(self, load: EngineLoad) -> bool:
        """Whether more items would only wait in the engine."""
        is_queueing = load.waiting > 0 and load.running < self._sequences_max
        return load.kv_usage > KV_USAGE_GROWTH_MAX or is_queueing

    def _resize(self, size: int, now_s: float) -> None:
        if size != self.size:
            self.size, self._changed_s = size, now_s
