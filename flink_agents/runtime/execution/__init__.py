"""A run and its actions: context, executor, limits, durable calls, the order of outcomes."""
