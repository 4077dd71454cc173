"""Key services: what the operator does for a key beyond taking inputs and committing runs."""
