"""A job under load for hours, whose resources must not grow: ``python -m tests.soak``."""
