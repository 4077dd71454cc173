"""The path from Flink to the operator through PyFlink's internals."""
