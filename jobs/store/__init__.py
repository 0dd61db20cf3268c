"""Transactions on jobs, files, control state, idempotency keys, outbox rows and redrives."""
