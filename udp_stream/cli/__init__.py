"""The command line: verbs, and what people read."""
