"""The store ``memory``."""
