"""PyFlink's and Flink's internals: calls of the operator, its task, the graph of a job."""
