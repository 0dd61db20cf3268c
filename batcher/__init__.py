"""The batcher: reads chunks with Faust, forms batches, sends them to replicas with credit."""
