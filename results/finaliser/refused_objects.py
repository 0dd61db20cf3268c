"""Objects that the store refuses to give up: they rest, so that they keep no others waiting."""

from dataclasses import dataclass, field
from typing import Final

from core.errors import Disposition, MillraceError
from storage.objects.object_store import ObjectStore

REFUSED_MAX: Final = 10_000
"""Beyond, all are asked for again: the store gives up nothing, and its operator is to act."""


@dataclass(frozen=True, slots=True)
class RefusedObjects:
    """What one process was refused since it last tried everything; one thread uses it."""

    resting: set[str] = field(default_factory=set)

    def delete(self, store: ObjectStore, key: str) -> MillraceError | None:
        """Delete an object; what is returned says why it stays. Raises what may pass: it is away.

        Whoever looks for the next ones leaves out what rests.
        """
        try:
            store.delete(key)
        except MillraceError as failure:
            if failure.disposition is Disposition.RETRY:
                raise
            self.resting.add(key)
            return failure
        return None

    def retry_refused(self, *, is_last: bool) -> None:
        """Let all be asked for again, once the last of the others was, or when they are many."""
        if is_last or len(self.resting) >= REFUSED_MAX:
            self.resting.clear()
