"""Records of the topic `models`: what the registry lets replicas load.

A version is registered and at most once retired, a key is added and at most once revoked. The
second state has a record key of its own, so that compaction never drops it in favour of a first
state that was written later, such as from a restored database.
"""

from typing import Final

from topics.records.records import Record

FIRST_REVISION: Final = 1
FINAL_REVISION: Final = 2
"""Of a version that is retired, and of a key that is revoked: no act follows."""


class ModelState(Record, frozen=True):
    """A version of a model, as the registry has it (`models`, keyed by state, name and version).

    Of a name and version, the highest revision counts.
    """

    name: str
    version: str
    pool: str
    revision: int
    retired: bool = False  # must not be loaded any more
    base_version: str = ""  # of an adapter


class ModelKeyState(Record, frozen=True):
    """A key for signatures of models, as the registry has it (`models`, by state and key id)."""

    key_id: str
    revision: int
    revoked: bool = False


def model_state_key(state: ModelState | ModelKeyState) -> bytes:
    """Return the key of a record: `version:` or `retired:`, `key:` or `revoked:`, and whose."""
    if isinstance(state, ModelKeyState):
        return f"{'revoked' if state.revoked else 'key'}:{state.key_id}".encode()
    return f"{'retired' if state.retired else 'version'}:{state.name}@{state.version}".encode()
