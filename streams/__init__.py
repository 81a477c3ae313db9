"""The deployment on Kafka: wiring only. Everything that decides anything is in `udp_stream`."""
