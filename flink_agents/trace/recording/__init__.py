"""Creates execution records of runs, and queues them for the sinks."""
