"""The outcomes that an action waits for, delivered in an order that a replay repeats."""
