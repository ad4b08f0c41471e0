"""The measuring rules (time to accuracy) as pure functions: statistics, verdicts, guards, planning tables."""
