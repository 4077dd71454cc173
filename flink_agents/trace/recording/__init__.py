"""Makes execution records of what runs do, and queues them for the sinks."""
