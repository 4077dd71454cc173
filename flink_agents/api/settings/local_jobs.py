"""Policies of a local job for data of an earlier start."""

from __future__ import annotations

from enum import StrEnum


class Resume(StrEnum):
    """Policy for the starts of a local job.

    Attributes:
        AUTO: A job with a name resumes if ``__main__`` is a file, outside of IPython and pytest.
        NEVER: No job resumes, and no data is kept for it.
        REQUIRE: As ``AUTO``, in IPython and pytest too; a job that cannot resume is an error.
    """

    AUTO = "auto"
    NEVER = "never"
    REQUIRE = "require"


class Accept(StrEnum):
    """A loss or a repetition that a start may accept to resume.

    Attributes:
        NOTHING: Such a start is an error.
        LOST_OUTPUTS: Outputs of transactions that brokers have aborted are lost.
        OLDER_JOURNAL: Durable steps that an older copy of the journal lacks are repeated.
        OTHER_SCRIPT: The job run continues, although another script started it.
    """

    NOTHING = "nothing"
    LOST_OUTPUTS = "lost-outputs"
    OLDER_JOURNAL = "older-journal"
    OTHER_SCRIPT = "other-script"
