"""Benchmarks: speed and memory, as ratios beside something comparable measured in the same run."""
