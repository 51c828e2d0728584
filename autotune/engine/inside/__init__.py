"""Scripts that run inside vLLM's own Python; standard library only, for whatever Python that is."""
