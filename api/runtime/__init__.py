"""What one API process shares: threads, database transactions, slots and services."""
