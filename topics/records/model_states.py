"""Records of the topic `models`: what the registry lets replicas load."""

from topics.records.records import Record


class ModelState(Record, frozen=True):
    """A version of a model, as the registry has it (`models`, keyed by name and version).

    Of equal keys, the highest revision counts.
    """

    name: str
    version: str
    pool: str
    revision: int
    retired: bool = False  # must not be loaded any more
    base_version: str = ""  # of an adapter


class ModelKeyState(Record, frozen=True):
    """A key for signatures of models, as the registry has it (`models`, by key id)."""

    key_id: str
    revision: int
    revoked: bool = False
