"""Actions of this package, which answer events by models and tools."""
