"""The object store: one interface, a local folder and S3 behind it, and one conformance suite."""
