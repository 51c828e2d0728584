"""Finds the vLLM engine settings that carry the most traffic while the latency objective holds."""

__version__ = "0.1.0"
