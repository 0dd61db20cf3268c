"""Connections and nothing else: Postgres and the object store."""
