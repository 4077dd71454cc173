"""The way from Flink into the operator that goes through internals of PyFlink."""
