"""Destroys the data key that encrypts the bodies of a job."""

from uuid import UUID

from core.object_names import job_key_name
from storage.objects.object_store import ObjectStore


def destroy_job_key(store: ObjectStore, job_id: UUID) -> None:
    """Make the job's bodies on the log and in rows unreadable for ever; harmless when repeated.

    Call it once the job is a tombstone. A process that has cached the key forgets it within
    `KEY_CACHE_S_MAX`. Raises the errors of the object store.
    """
    store.delete(job_key_name(job_id))
