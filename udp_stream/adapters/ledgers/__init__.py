"""Ledgers of this machine and of Redis, their key, and what is said of them."""
