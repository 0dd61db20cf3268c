"""Postgres: engines, settings, the tenant wall, and and the table of item rows."""
