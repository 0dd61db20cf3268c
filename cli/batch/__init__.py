"""`millrace batch`, `jobs` and `dlq`: bulk jobs from the shell."""
