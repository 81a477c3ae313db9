"""CDFs of the speeds in a HAT, private at user level: bins, trees, their search, consistency (arXiv 2409.18573)."""
