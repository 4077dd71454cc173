"""Subscriptions of sources: their topics, their beginning and end, and no records of their own."""
