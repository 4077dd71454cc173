"""Chat models: each request of an action is one recorded call."""
