"""The life cycle of a job: rows, states, files, intake (file to records) and outbox."""
