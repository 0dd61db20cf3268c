"""Content-addressed descriptions of model versions, and the files that they list."""
