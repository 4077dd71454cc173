"""What actions wait for besides durable calls."""
