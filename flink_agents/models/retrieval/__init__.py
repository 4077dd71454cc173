"""Embedding models, vector stores and long-term memory: actions search by meaning, and remember."""
