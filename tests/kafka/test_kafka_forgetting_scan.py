"""What was appended behind a removal that was forgotten stays, also where that is read afterwards."""

from __future__ import annotations

from flink_agents.api.action_state import NOTHING_PRUNED
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from tests.kafka.kafka_stores import batches, indexes, journal_in, opened, record, run


def test_a_part_with_what_was_forgotten_is_read_last(settings: KafkaSettings) -> None:
    async def body() -> None:
        journal, idle = journal_in(settings, 0), journal_in(settings, 0, 1)
        first = await opened(settings)
        await first.rebuild()
        await first.append(journal, [record(8)])
        await first.prune(journal, 7)
        await first.forget(journal.journal_id)
        marker = first.recovery_marker(journal)
        await first.append(journal, [record(5, 1)])
        await first.close()

        second = await opened(settings)
        await second.rebuild(journal, marker)
        assert indexes(await second.scan(journal)) == [1]
        await second.rebuild(idle)  # all that lies before the marker
        await second.append(journal, [record(6, 2)])
        assert indexes(await second.scan(journal)) == [1, 2]
        await second.close()  # removes what nobody needs

        third = await opened(settings)
        await third.rebuild()
        assert indexes(await third.scan(journal)) == [1, 2]
        assert await third.pruned_through(journal) == NOTHING_PRUNED
        await third.close()

    run(body())
    # The next compaction takes away what was removed.
    entries = [entry for batch in batches(settings) for entry in batch.entries or ()]
    assert [stored_record.seq for entry in entries for stored_record in entry.records] == [5, 6]
