"""Private queries on positions: range counts, densities, nearest vehicles, thresholds, by iterative
elimination."""
