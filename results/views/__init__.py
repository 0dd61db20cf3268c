"""Read access for owners of batches: results, items and dead letters, during and after a run."""
