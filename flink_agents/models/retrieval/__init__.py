"""Embedding models, vector stores and long-term memory: what actions find by meaning, and remember."""
