"""The deployment on Kafka: topics, agents, workers. Wiring only; everything that decides lives in `udp_stream`."""
