"""Values of classes: how state holds them, and how they are read after the class has changed."""
