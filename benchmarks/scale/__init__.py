"""``python -m benchmarks scale``: what slots, processes, keys and suspended runs cost on a cluster."""
