"""Transactions on jobs, files, controls, idempotency keys, outbox rows and redrives."""
