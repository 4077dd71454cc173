"""Ends an operator at chosen points and starts another one: restarts, crashes, and other orders of inputs."""
