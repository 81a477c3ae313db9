"""Mechanisms: bound, noise, cost and estimate of each statistic, side by side."""
