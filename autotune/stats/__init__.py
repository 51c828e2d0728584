"""Percentiles, sequential SLO test, capacity search, comparisons: pure functions on arrays."""
