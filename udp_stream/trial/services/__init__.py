"""A real Kafka and a real Redis as child processes."""
