"""Decides which attempt may append to a store ``kafka``."""
