"""Batches and calls in flight: delivery, progress, outcomes, publishing and replies."""
