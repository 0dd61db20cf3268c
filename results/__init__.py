"""Results topic to Postgres, and Postgres to output files."""
