"""Generated input files, records, rows and models."""
