"""Execution records of runs: creates them, writes them to sinks, and reads them."""
