"""Finds Java and starts the JVM of PyFlink."""
