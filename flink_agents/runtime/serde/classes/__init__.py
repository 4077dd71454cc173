"""Values of classes: as state holds them, and what becomes of them when the class changes."""
