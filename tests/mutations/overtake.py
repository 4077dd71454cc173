"""The mutations of interleaved runs. Programs whose inputs overtake runs find them."""

from __future__ import annotations

from typing import Any

from tests.mutations.mutation import mutation


@mutation("part-ends-elsewhere", "runtime.loop.suspender:ends_part", overtakes=True)
def part_ends_elsewhere(before: Any) -> Any:
    """A replay of a part takes what would end its waits, and goes on without the records of the next part."""
    return lambda record: False


@mutation("old-part-sees-the-present", "runtime.loop.suspender:RunSuspender._parts", overtakes=True)
def old_part_sees_the_present(before: Any) -> Any:
    """A replay of an old part reads what memory is now."""

    def parts(self: Any, run: Any, suspension: Any) -> Any:
        run_parts = before(self, run, suspension)
        if run_parts is not None:
            memory = run.short_term
            for old in memory._parts[:-1]:
                old.cached = dict(memory._parts[-1].cached)
        return run_parts

    return parts


@mutation("parts-not-told-apart", "runtime.execution.waits.run_waits:RunParts.show", overtakes=True)
def parts_not_told_apart(before: Any) -> Any:
    """What an action reads behind its wait is what it would have read before."""
    return lambda self, path, number: None


@mutation("set-aside-unstored", "runtime.journal.run_journal:RunJournal.end_part", overtakes=True)
def set_aside_unstored(before: Any) -> Any:
    """A part that has ended is not in the store when the next one begins."""

    async def end_part(self: Any, counts: bool) -> None:
        self._unstored.clear()

    return end_part


@mutation("parts-alike", "runtime.operator.services.suspension:wake_up", overtakes=True)
def parts_alike(before: Any) -> Any:
    """Wake-ups of a key are all alike, so that records of one run are given to another one."""
    return lambda codec, aside: before(codec, aside._replace(seq=0, part=0))
