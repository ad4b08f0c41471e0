"""The measuring rules (docs/method.md) as pure functions: statistics, verdicts, guards."""
