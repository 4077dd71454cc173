"""Converts values to bytes and back."""
