"""Threads, deadlines, and the bridge between threads."""
