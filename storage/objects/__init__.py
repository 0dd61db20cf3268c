"""The object store: one interface with a local folder or an S3 bucket behind it."""
