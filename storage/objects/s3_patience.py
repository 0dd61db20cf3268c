"""Repeats requests of an upload that a store refuses for now, instead of the whole upload.

The client's own retries are few, and a store that throttles for minutes uses up their quota. An
upload of a thousand parts would then hardly ever end, and each attempt would start from nothing.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from storage.objects.errors import ObjectStoreUnavailableError

T = TypeVar("T")

PAUSE_S_MAX: Final = 16.0


def _sleep(pause_s: float) -> bool:
    time.sleep(pause_s)
    return False


@dataclass(frozen=True, slots=True)
class UploadPatience:
    """How long one request of an upload is repeated, with exponential backoff and full jitter."""

    pauses_max: int = 0  # none: the caller has a client that waits
    pause: Callable[[float], bool] = _sleep
    """Waits so many seconds; returns whether to give up, as `threading.Event.wait` does."""

    fraction: Callable[[], float] = random.random
    """Returns a uniform random number from [0, 1)."""

    def run(self, request: Callable[[], T]) -> T:
        """Return what `request` returns. Raises ObjectStoreUnavailableError after the last pause.

        Repeating `request` must be harmless.
        """
        for number in range(self.pauses_max):
            try:
                return request()
            except ObjectStoreUnavailableError as failure:
                # Its subclasses say that the upload has ended, or that another is about to.
                if type(failure) is not ObjectStoreUnavailableError:
                    raise
                if self.pause(self.fraction() * min(2.0**number, PAUSE_S_MAX)):
                    raise
        return request()


NO_PATIENCE: Final = UploadPatience()
"""Repeats nothing."""

BACKGROUND_PAUSES: Final = 12
"""Pauses of a role without a client: about two minutes with the client's own, for each request."""
