"""A run and its actions: context, executor, routing, limits, the order of outcomes."""
