"""Builds batch objects of the API."""

from typing import Any

from openai.types import Batch


def batch(status: str = "in_progress", **fields: Any) -> Batch:
    """Return a batch object; `fields` replace or add some."""
    sent = {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/embeddings",
        "input_file_id": "file-1",
        "completion_window": "24h",
        "created_at": 0,
        "status": status,
        "request_counts": {"total": 10, "completed": 4, "failed": 1},
    }
    return Batch.model_validate(sent | fields)
