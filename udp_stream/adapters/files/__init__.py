"""Files: pings from them, and files that are there whole or not at all."""
