"""Topics of Kafka, a broker for development, and answers to waiting runs through topics."""
