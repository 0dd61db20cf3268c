"""The books of a job recomputed: from its rows, from the ledger, and from the log itself."""
