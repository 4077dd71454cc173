"""Runs a command in a folder, ends it with all its descendants, and removes the folder.

``python guard.py FOLDER COMMAND...`` is a separate process, so that this happens even if the worker is
killed: the worker holds the other end of the standard input, which closes with it. On Linux this process
adopts processes that the command leaves running, even in new sessions. It imports only the standard
library, since it is executed by its path.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

# Numbers of Linux: options of prctl, and the right to read the memory of other processes.
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAP_SYS_PTRACE = 19
CANNOT_RUN = 126
"""The exit code of a command that cannot be started, as in shells."""


def main(folder: str, command: list[str]) -> int:
    """Run a command until it ends, or until the standard input of this process ends; return its exit code.

    Args:
        folder: The working directory of the command, which is removed at the end.
        command: The program, and its arguments.
    """
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Otherwise a script of root could read the memory of the worker, which is closed to others. If this
        # fails, the script has no such right anyway.
        prctl(_PR_CAPBSET_DROP, _CAP_SYS_PTRACE, 0, 0, 0)
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    child_ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    try:
        child = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"the script cannot be started: {error}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return CANNOT_RUN
    try:
        while child.poll() is None:
            ready, _, _ = select.select([0, child_ended], [], [])
            if child_ended in ready:
                os.read(child_ended, 4096)
            if 0 in ready and not os.read(0, 1):
                break
    finally:
        code = child.poll()
        end_all(child.pid)
        shutil.rmtree(folder, ignore_errors=True)
    # A process that was ended by a signal has a code above 128, as in shells.
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def end_all(group: int) -> None:
    """Kill the processes of a group, and all descendants of this process; wait until none is left."""
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        survivors = descendants(os.getpid()) if sys.platform == "linux" else []
        for process in survivors:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not _reap_children(bool(survivors)):
            return


def _reap_children(wait: bool) -> bool:
    """Read the exit codes of ended children; return True if others are still running.

    Args:
        wait: True to wait until one has ended.
    """
    try:
        while os.waitpid(-1, 0 if wait else os.WNOHANG)[0]:
            wait = False
    except ChildProcessError:
        return False
    return True


def descendants(ancestor: int) -> list[int]:
    """Return the process ids of the living descendants of a process, on Linux."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                parents[int(name)] = int(parent)
    processes: list[int] = []
    stack = [ancestor]
    while stack:
        current = stack.pop()
        children = [process for process, parent in parents.items() if parent == current]
        processes += children
        stack += children
    return processes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
