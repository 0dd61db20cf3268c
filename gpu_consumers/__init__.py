"""The GPU consumer: replicas of a pool, which execute batches and calls on an engine."""
