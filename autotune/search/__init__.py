"""The loop: proposal, trial, tell; confirmation and verdict."""

from autotune.search.keeper import DashboardPages
from autotune.search.run import PreparedStudy, SearchOptions, describe_plan, prepare_study, run_prepared

__all__ = ["DashboardPages", "PreparedStudy", "SearchOptions", "describe_plan", "prepare_study", "run_prepared"]
