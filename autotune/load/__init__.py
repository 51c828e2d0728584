"""Workloads, arrivals, HTTP transport, stream parser, workers, request records."""
