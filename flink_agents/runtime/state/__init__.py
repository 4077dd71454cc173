"""The keyed state."""
