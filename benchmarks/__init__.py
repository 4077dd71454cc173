"""Benchmarks: ``python -m benchmarks CASE --json``. Each runs its baseline in the same run."""
