"""The loop: proposal, trial, tell; confirmation and verdict."""
