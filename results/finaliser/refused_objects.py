"""Objects whose deletion the store refuses: they are skipped, so that they block no others."""

from dataclasses import dataclass, field
from typing import Final

from core.errors import Disposition, MillraceError
from storage.objects.object_store import ObjectStore

REFUSED_MAX: Final = 10_000
"""Above it all are tried again: the store refuses everything, and its operator has to act."""


@dataclass(frozen=True, slots=True)
class RefusedObjects:
    """Keys that were refused since all were last tried. Not thread-safe."""

    keys: set[str] = field(default_factory=set)

    def delete(self, store: ObjectStore, key: str) -> MillraceError | None:
        """Delete an object; return the error when the store refuses it for good.

        Raises temporary errors. The caller excludes `keys` when it selects the next objects.
        """
        try:
            store.delete(key)
        except MillraceError as failure:
            if failure.disposition is Disposition.RETRY:
                raise
            self.keys.add(key)
            return failure
        return None

    def retry_refused(self, *, is_last: bool) -> None:
        """Forget the refusals once all other objects were tried, or when there are too many."""
        if is_last or len(self.keys) >= REFUSED_MAX:
            self.keys.clear()
