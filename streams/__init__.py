"""The deployment on Kafka. `wire.py` and `protocol.py` decide, and are pure; the rest is wiring."""
