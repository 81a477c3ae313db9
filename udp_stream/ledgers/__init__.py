"""The ledgers in SQLite and Redis: how one is opened, what is kept beside it, and its privacy
statement."""
