"""Creation of resources: secrets, packages of extras, classes, limits of requests."""
