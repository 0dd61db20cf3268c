"""Liveness of batches and calls, and the abort of executions that nobody needs."""
