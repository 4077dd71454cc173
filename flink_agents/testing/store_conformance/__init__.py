"""A pytest suite with all requirements of an action state store, also for third parties.

::

    import pytest
    from flink_agents.testing.store_conformance import ActionStateStoreSuite

    class TestMyStore(ActionStateStoreSuite):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path / "store")

Each call of the fixture's function makes a store that is not open; all stores of a test share their
records, as attempts of a job do. If a store has leases, make them short here, about a second. If
it does not remember pruned journals for ever, set :attr:`~ActionStateStoreSuite.removals`. Cases are skipped
if the suite does not override their requirements: the method ``kill``, for killed processes, and the fixture
``store_files``, for losses of power.

The suite requires these errors of :mod:`flink_agents.api.errors`:

- ``StoreClosedError``: the store is not open, or an append needs an owner.
- ``FencedOwnerError``: another owner took over.
- ``JobIdentifierInUseError``: another running job has the group.
- ``RecordTooLargeError``: a record exceeds ``max_record_bytes``.
- ``RecordsPrunedError``: a pruned run is read or appended to.
- ``StoreMismatchError``: the marker is of another store.

It cannot provoke these, which a store raises as well:

- ``StoreUnavailableError``: nothing was stored, and the call may be repeated.
- ``AppendOutcomeUnknownError``: it is unknown if the records are stored. All further appends are rejected.
- ``StoreFormatError``: the bytes are of no store, or of a newer version.
- ``JournalOutdatedError``: the store can tell that it is an older copy than the one that wrote the marker.
"""

from flink_agents.testing.store_conformance.base import Stores
from flink_agents.testing.store_conformance.content import ContentCases
from flink_agents.testing.store_conformance.lifecycle import LifecycleCases
from flink_agents.testing.store_conformance.ownership import OwnershipCases
from flink_agents.testing.store_conformance.power_loss import PowerLossCases
from flink_agents.testing.store_conformance.pruning import ForgettingCases, PruningCases, RemovalCases

__all__ = ["ActionStateStoreSuite", "Stores"]


class ActionStateStoreSuite(
    ContentCases, PruningCases, RemovalCases, ForgettingCases, OwnershipCases, LifecycleCases, PowerLossCases
):
    """All cases for a store of durable execution; the module describes its use."""
