"""Launch, readiness, watch, stop; failure classification; the engines: vLLM and simulated."""
