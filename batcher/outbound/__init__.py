"""Dispatch of batches against the capacity that replicas publish."""
