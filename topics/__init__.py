"""The log: topic catalogue, record schemas, partitioner and Kafka clients."""
