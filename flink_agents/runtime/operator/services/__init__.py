"""Key services: features that keep data for a key, besides its inputs and runs."""
