"""The papers' experiments, and real services as child processes for trials: no deployment imports
any of it."""
