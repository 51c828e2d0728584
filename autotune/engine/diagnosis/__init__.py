"""Why an engine stopped, from its log and from what its supervisor knows."""

from autotune.engine.diagnosis._diagnose import Evidence, diagnose

__all__ = ["Evidence", "diagnose"]
