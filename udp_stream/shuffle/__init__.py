"""Shuffle: closed slots to the shards that release them, counts to the planner, plans back to the
shards."""
