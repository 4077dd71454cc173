"""Names of journals: which job and which agent a journal belongs to, in one text.

The name is the ``journal_id`` of a store, and the group in which owners of journals exclude each
other. It is ``job/agent``, which can be split at the last slash, as long as the name of the agent has
none. One that has is written by its length: no two pairs of names give the same text.
"""

from __future__ import annotations

import re

_FLINK_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SIZED = re.compile(r"([0-9]+):", re.ASCII)


def journal_name(job: str, agent: str) -> str:
    """The name of the journals of an agent in a job.

    Args:
        job: Identity of the job: its ``job-identifier``, or Flink's id at the first start.
        agent: Name of the agent.
    """
    if "/" not in agent:
        return f"{job}/{agent}"
    # Without a slash, so that it is none of the above.
    job, agent = _escaped(job), _escaped(agent)
    return f"{len(job)}:{job}:{agent}"


def split_journal_name(name: str) -> tuple[str, str]:
    """Job and agent of which ``name`` is the name; a text of another origin counts as a job."""
    if "/" in name:
        job, _, agent = name.rpartition("/")
        return job, agent
    sized = _SIZED.match(name)
    if sized is not None:
        begin = sized.end()
        # No name is as long as a number with so many digits says; int() refuses even longer ones.
        end = begin + int(sized[1][:9])
        job, agent = _plain(name[begin:end]), _plain(name[end + 1 :])
        if journal_name(job, agent) == name:
            return job, agent
    return name, ""


def is_flink_job_id(text: str) -> bool:
    """Whether ``text`` may be Flink's id of a job, and so no ``job-identifier``."""
    return _FLINK_ID.fullmatch(text) is not None


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def _plain(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")
