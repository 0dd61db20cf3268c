"""The embedded stack: a real Kafka broker, a real Postgres and every role, as child processes."""
