"""The embedded broker and database."""
