"""NVML, engine metrics, host: devices with one life cycle."""
