"""What resources are made with: secrets, packages of extras, classes, limits of requests."""
