"""The store ``sqlite``."""
