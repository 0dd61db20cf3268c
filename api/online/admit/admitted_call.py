"""The result of admission: everything that sending and answering a call needs."""

from dataclasses import dataclass

from api.online.admit.rate_limits import Charge
from api.online.answer.timings import Timings
from api.online.calls import PlannedCall, PreparedCall, RawHeaders
from api.online.receive.exchange import Exchange


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call that passed all checks."""

    exchange: Exchange
    planned: PlannedCall
    prepared: PreparedCall
    charge: Charge  # of the tenant's rate limits; settled when the call ends
    headers: RawHeaders  # of every response to the call
    cache_key: bytes | None  # None: the response is not cached
    prompt_tokens: int  # estimate
    timings: Timings

    def left_s(self, wait_s: float, *, now_s: float) -> float:
        """Return the rest of a timeout of the call; 0 when it has passed."""
        return self.planned.left_s(wait_s, now_s=now_s)
