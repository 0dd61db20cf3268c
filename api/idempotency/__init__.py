"""Idempotency keys on POST requests."""
