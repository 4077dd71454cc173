"""Chat models: each request that an action makes is one recorded call."""
