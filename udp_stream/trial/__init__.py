"""What demos and tests run on, never a deployment."""
