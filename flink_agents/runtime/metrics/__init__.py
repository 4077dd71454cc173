"""What the runtime counts and measures."""
