"""The ledger in Redis, and its scripts."""
