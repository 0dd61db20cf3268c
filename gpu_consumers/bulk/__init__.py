"""Execution of bulk batches."""
