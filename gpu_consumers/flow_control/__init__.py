"""Flow control of a replica: published capacity, grants per batcher, rate and pool health."""
