"""`millrace demo`: three jobs on a real broker, a real database and real models."""
