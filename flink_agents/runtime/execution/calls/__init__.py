"""Durable calls: their attempts, their arguments, their records."""
