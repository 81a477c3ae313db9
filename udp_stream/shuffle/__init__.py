"""Shuffle: closed slots to the shards that release them, their counts to the planner, and plans back."""
