"""Reads of the database, of output files and of metrics, and triggers that record changes."""
