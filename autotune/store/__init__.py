"""What Optuna does not hold: probes, telemetry, failures, measured configurations."""
