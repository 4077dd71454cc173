"""The command line of the package, ``flink-agents``."""
