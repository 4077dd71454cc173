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
it does not remember pruned journals for ever, set :attr:`~ActionStateStoreSuite.removals`.
"""

from flink_agents.testing.store_conformance.base import Stores
from flink_agents.testing.store_conformance.content import ContentCases
from flink_agents.testing.store_conformance.lifecycle import LifecycleCases
from flink_agents.testing.store_conformance.ownership import OwnershipCases
from flink_agents.testing.store_conformance.pruning import ForgettingCases, PruningCases, RemovalCases

__all__ = ["ActionStateStoreSuite", "Stores"]


class ActionStateStoreSuite(
    ContentCases, PruningCases, RemovalCases, ForgettingCases, OwnershipCases, LifecycleCases
):
    """All cases; see the module."""
