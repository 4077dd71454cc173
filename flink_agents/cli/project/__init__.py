"""A new project, and the templates of its files."""
