"""When records may go."""
