"""Threads, deadlines and clients."""
