"""Everything that imports PyFlink: the function, the environment, streams and types."""
