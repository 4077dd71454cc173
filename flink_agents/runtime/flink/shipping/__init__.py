"""Brings the user's code to workers, and tells versions of it apart."""
