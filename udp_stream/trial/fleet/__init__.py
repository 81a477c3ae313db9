"""A synthetic fleet of buses."""
