"""One trial and its capacity search."""
