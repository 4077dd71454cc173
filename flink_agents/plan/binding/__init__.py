"""Turns a plan into an agent that can run."""
