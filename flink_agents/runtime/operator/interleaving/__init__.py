"""Interleaving: inputs of a key run while its earlier runs are suspended. Other agents never import it."""
