"""Liveness of batches and calls, and aborting executions that nobody needs."""
