"""Credits for batchers: grants, published capacity, measured rate and pool health."""
