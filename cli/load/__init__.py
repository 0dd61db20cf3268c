"""`millrace bench-online`: load on online calls, measured at the client."""
