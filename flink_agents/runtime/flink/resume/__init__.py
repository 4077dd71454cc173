"""Local jobs that resume: the folder of a job, the record of its job run, and the start that resumes it."""
