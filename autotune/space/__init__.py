"""Search spaces, rules, feasibility before launch, translation to flags and to Optuna."""
