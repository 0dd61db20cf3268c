"""Kafka clients: producer, group consumer, admin, committed offsets and group membership."""
