"""GPUs, models and workloads: facts from ``search_spaces/`` and ``config.json``."""
