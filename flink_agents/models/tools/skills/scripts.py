"""Runs scripts of skills: as processes, with their own folder and environment, and a timeout.

Before the first one, the secrets of the worker are protected from processes of the same user.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flink_agents import redaction
from flink_agents.api.errors import ResourceUnavailableError
from flink_agents.api.models.skills import SkillsSpec
from flink_agents.api.settings import ToolSourceLimits
from flink_agents.models.setup.limiter import RequestLimiter
from flink_agents.models.setup.secrets import Secrets
from flink_agents.models.tools.skills.library import Skill, SkillRefusal

INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables of the worker that each script inherits; all others are omitted."""

MOST_ARGUMENTS = 100_000
"""Maximum size of all arguments of a script together, below the limits of operating systems."""

_GUARD = str(Path(__file__).with_name("guard.py"))
_CHUNK = 65_536
"""Bytes that are read from a script's output at a time."""
_END_SECONDS = 10.0
"""Seconds that the guard of a script has to end everything before it is killed itself."""


@dataclass
class BoundedOutput:
    """The beginning and the end of a process's output.

    Attributes:
        limit: Number of bytes that are kept.
    """

    limit: int
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)
    _size: int = 0

    def add_output(self, data: bytes) -> None:
        """Append output of the process, and forget what exceeds the limit, in the middle of all output."""
        head_limit = self.limit // 2
        tail_limit = self.limit - head_limit
        self._size += len(data)
        room = max(0, head_limit - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: max(0, len(self._tail) - tail_limit)]

    @property
    def text(self) -> str:
        """The kept output as text without secrets, with a line in place of the omitted part."""
        omitted_bytes = self._size - len(self._head) - len(self._tail)
        if not omitted_bytes:
            return redaction.hide((self._head + self._tail).decode("utf-8", "replace"))
        # A secret may have been cut in two.
        head = redaction.hide_cut(self._head.decode("utf-8", "replace"), end=True)
        tail = redaction.hide_cut(self._tail.decode("utf-8", "replace"), start=True)
        return f"{head}\n[{omitted_bytes} bytes left out]\n{tail}"


class ScriptRunner:
    """Runs the scripts of one source of skills.

    Args:
        what: The resource in words, for errors.
        spec: Description of the skills, with the settings of their scripts.

    Attributes:
        limits: Policies for scripts, by their names ``skill/script``: approvals and repetitions.
    """

    def __init__(self, what: str, spec: SkillsSpec) -> None:
        self._spec = spec
        self.limits: ToolSourceLimits = spec
        self._secrets = Secrets(what)
        self._limiter = RequestLimiter(spec.max_concurrency, spec.rate_limit)

    async def run_script(self, skill: Skill, script: str, arguments: Sequence[str]) -> dict[str, Any]:
        """Run a script in a copy of its skill's folder, and wait until it ends or times out.

        Args:
            skill: The skill.
            script: Path of the script in the skill.
            arguments: Arguments for the script.

        Returns:
            ``exit_code``, ``stdout`` and ``stderr``, without secrets. If it timed out, ``exit_code`` is None,
            and ``killed`` is the reason.

        Raises:
            SkillRefusal: The script does not exist, cannot be run, or has invalid arguments.
            ResourceUnavailableError: A secret of its environment is missing.
        """
        content = skill.find_file(script, skill.scripts)
        command = [*_interpreter(script, content), *_check_arguments(arguments)]
        close_worker()
        async with self._limiter:
            return await self._run_command(skill, command)

    async def _run_command(self, skill: Skill, command: list[str]) -> dict[str, Any]:
        """Run a command by a guard, which ends it with its descendants and removes the folder."""
        # If the worker crashes before a guard exists, the system's cleanup removes the folder.
        folder = tempfile.mkdtemp(prefix=f"skill-{skill.name}-")
        try:
            await asyncio.to_thread(_write_files, skill, folder)
            guard = await asyncio.create_subprocess_exec(
                *(python(), "-I", "-S", "-B", _GUARD, folder, *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment(folder),
                start_new_session=True,
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        outputs = [BoundedOutput(self._spec.output_limit) for _ in range(2)]
        reading = asyncio.gather(*map(_drain_stream, (guard.stdout, guard.stderr), outputs), guard.wait())
        timed_out = False
        try:
            done, _ = await asyncio.wait([reading], timeout=self._spec.timeout)
            timed_out = not done
        finally:
            await _end_processes(guard, reading)
        stdout, stderr = (output.text for output in outputs)
        result: dict[str, Any] = {"exit_code": guard.returncode, "stdout": stdout, "stderr": stderr}
        if timed_out:
            result |= {"exit_code": None, "killed": f"it took longer than {self._spec.timeout:g} seconds"}
        return result

    def _environment(self, folder: str) -> dict[str, str]:
        """Return the environment variables of a script whose home is ``folder``."""
        names = (*INHERITED, *self._spec.inherit)
        environment = {name: os.environ[name] for name in names if name in os.environ}
        for name, value in self._spec.environment.items():
            environment[name] = self._secrets.text(value, name)
        return {**environment, "HOME": folder, "TMPDIR": folder}


def _write_files(skill: Skill, folder: str) -> None:
    """Write the files of a skill into a folder, where its script may change them."""
    for path, content in skill.tree.files.items():
        file = Path(folder, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        if content.startswith(b"#!"):
            file.chmod(0o700)


@functools.cache
def python() -> str:
    """Return the path of this process's Python.

    If a JVM embeds Python, ``sys.executable`` may be that of Java.

    Raises:
        ResourceUnavailableError: Python is not found.
    """
    installed = [Path(prefix, "bin", "python3") for prefix in (sys.prefix, sys.base_prefix)]
    for path in (Path(sys.executable or "-"), *installed):
        if path.name.startswith("python") and os.access(path, os.X_OK):
            return str(path)
    raise ResourceUnavailableError(
        "no Python was found for the scripts of skills",
        expected=f"python3 in {installed[0].parent}",
        found=repr(sys.executable),
        fix="set python.executable to the Python of a virtual environment",
    )


def _interpreter(script: str, content: bytes) -> list[str]:
    """Return the command that starts a script, without its arguments; SkillRefusal if nothing can run it."""
    if script.endswith(".py"):
        return [python(), "-B", script]
    if content.startswith(b"#!"):
        return [f"./{script}"]
    if script.endswith(".sh"):
        return ["/bin/sh", script]
    raise SkillRefusal(f"{script!r} cannot be run: it is not Python, and has no first line '#!'.")


def _check_arguments(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments of a script; SkillRefusal if they cannot be passed to a process."""
    try:
        size = sum(len(os.fsencode(argument)) for argument in arguments)
    except UnicodeEncodeError:
        raise SkillRefusal("an argument has characters that cannot be passed to a process.") from None
    if any("\0" in argument for argument in arguments):
        raise SkillRefusal("an argument has a zero byte, which cannot be passed to a process.")
    if size > MOST_ARGUMENTS:
        raise SkillRefusal(f"the arguments have {size} bytes, the limit is {MOST_ARGUMENTS}.")
    return arguments


async def _drain_stream(stream: asyncio.StreamReader | None, output: BoundedOutput) -> None:
    """Read an output of a process to its end: a process stalls if its output is not read."""
    assert stream is not None
    while data := await stream.read(_CHUNK):
        output.add_output(data)


async def _end_processes(guard: asyncio.subprocess.Process, reading: asyncio.Future[Any]) -> None:
    """Let a guard end all processes of its script, even if the caller no longer waits.

    Args:
        guard: The process of the guard.
        reading: Completes when the outputs are read, and the guard has ended.
    """
    if guard.stdin is not None:
        guard.stdin.close()
    try:
        async with asyncio.timeout(_END_SECONDS):
            await asyncio.shield(reading)
    except TimeoutError:
        guard.kill()
        reading.cancel()
    except asyncio.CancelledError:
        # The attempt ends as soon as the guard has seen its closed input. If the loop ended before that,
        # asyncio's transport of the guard would stay open.
        try:
            await asyncio.wait([reading], timeout=_END_SECONDS)
        finally:
            reading.cancel()
        raise


_PR_SET_DUMPABLE = 4
"""Option of Linux's prctl: whether other processes of the user may read the memory of this one."""


def close_worker() -> None:
    """Prevent scripts from reading the secrets of this process through ``/proc``, on Linux.

    ``/proc/PID/mem`` belongs to root from then on, and debuggers of the same user cannot attach. In
    ``/proc/PID/environ``, which shows the initial environment of the process, secrets are overwritten. They
    stay in ``os.environ``.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    redaction.look_at_variables()
    for name, address in _variable_addresses().items():
        value = os.environb.get(name)
        if not value or not redaction.holds(os.fsdecode(value)):
            continue
        # The C library copies it to another place.
        os.environb[name] = value
        value_address = address + len(name) + 1
        if _variable_addresses().get(name) != address and ctypes.string_at(value_address) == value:
            ctypes.memset(value_address, ord("*"), len(value))


def _variable_addresses() -> dict[bytes, int]:
    """Return the address of ``NAME=value`` in the C library for each environment variable, by name."""
    entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    addresses: dict[bytes, int] = {}
    position = 0
    while entries and (address := entries[position]) is not None:
        addresses[ctypes.string_at(address).partition(b"=")[0]] = address
        position += 1
    return addresses
