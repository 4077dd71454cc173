"""Local jobs that continue: the folder of a job, the record of its job run, and how a start resumes it."""
