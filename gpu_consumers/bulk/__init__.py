"""Execution of batches of bulk items."""
