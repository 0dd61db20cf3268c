"""From delivered records to buffered chunks."""
