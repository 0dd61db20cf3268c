"""Tables of jobs, files, leases, cursors, retries, the outbox and idempotency keys."""
