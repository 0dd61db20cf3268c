"""Names of objects that more than one room must agree on."""

from uuid import UUID


def answer_prefix(job_id: UUID) -> str:
    """Return what the keys of a job's oversized answers start with; its files copy them."""
    return f"answers/{job_id.hex}/"
