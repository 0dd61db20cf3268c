"""Items, results and books of batches: what their owners read while they run and afterwards."""
