"""The stores of durable execution; ``api/settings/stores.py`` opens them by name."""
