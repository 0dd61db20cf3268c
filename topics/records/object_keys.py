"""Which stored objects a record may name: only those of its own job or call.

Whoever can write a record could otherwise have the object of another tenant opened: as the input
of an item, as the key of a body, or as the answer to a call.
"""

from uuid import UUID

from core.errors import Disposition, MillraceError
from core.object_names import CALL_KEYS, FILES, REQUESTS, answer_prefix, job_key_name
from topics.metrics import FOREIGN_OBJECTS
from topics.records.records import JobRef


class ForeignObjectError(MillraceError):
    """This request names a stored object that is not its own."""

    code = "foreign_object"
    disposition = Disposition.REJECT


def require_own_answer(job_id: UUID, key: str) -> None:
    """Raise ForeignObjectError unless `key` is that of an answer of the job or call."""
    _require(key.startswith(answer_prefix(job_id)), "body_key")


def require_own_input(job: JobRef) -> None:
    """Raise ForeignObjectError unless the job's items may be lines of its `input_key`.

    Files have names of their own, so a batch can be required to name some uploaded file only;
    a call has one object for its body, or for its line when it is durable.
    """
    own = f"{REQUESTS}{job.job_id.hex}"
    is_file = job.call is None and job.input_key.startswith(FILES)
    _require(is_file or job.input_key in {own, f"{own}.jsonl"}, "input_key")


def require_own_data_key(job: JobRef) -> None:
    """Raise ForeignObjectError unless the job may use the data key that it names.

    A call shares its key with others of its api process; what is encrypted under it is bound to
    the call.
    """
    is_calls = job.call is not None and job.key_name.startswith(CALL_KEYS)
    _require(is_calls or job.key_name == job_key_name(job.job_id), "key_name")


def _require(is_own: bool, field: str) -> None:
    if not is_own:
        FOREIGN_OBJECTS.labels(field).inc()
        raise ForeignObjectError(field=field)
