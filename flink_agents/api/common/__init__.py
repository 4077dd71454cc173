"""The shared part of ``api``: names, values, places, policies, the current context."""
