"""The runs of a job: their records, their metrics, and requests about their keys."""
