"""Pings: bytes to accepted columns, and a refusal for everything that does not count."""
