"""The simulated engine: vLLM's scheduler, memory and step times on a GPU that is not there."""

VERSION = "0.33.0+simulated"
"""What the simulated engine calls itself: the vLLM whose flags and texts it follows."""
