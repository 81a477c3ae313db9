"""A synthetic bus fleet, for demos and tests, never a deployment."""
