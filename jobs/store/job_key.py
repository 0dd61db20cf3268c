"""The key under which a job's bodies are encrypted, and its end."""

from uuid import UUID

from core.object_names import job_key_name
from storage.objects.object_store import ObjectStore


def destroy_job_key(store: ObjectStore, job_id: UUID) -> None:
    """Make what the job has on the log and in rows unreadable for good; harmless when repeated.

    Call it once the job is a tombstone. A process that has the key in memory forgets it within
    `REMEMBERED_S_MAX`. Raises what a store raises.
    """
    store.delete(job_key_name(job_id))
