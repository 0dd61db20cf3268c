"""Tables of jobs, files, leases, cursors, retries and idempotency keys."""
