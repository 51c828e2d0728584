"""The simulated engine: roofline and memory model, scheduler, HTTP server."""
