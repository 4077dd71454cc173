"""Finds out when records may go, and prunes them."""
