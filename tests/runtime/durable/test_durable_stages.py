"""The stages of a durable call: each set of features gives a class, in which all of them are there."""

from __future__ import annotations

from itertools import chain, combinations

from flink_agents.api.durable import DurableCallable, Feature
from flink_agents.runtime.execution.calls.call import DurableCall
from flink_agents.runtime.execution.calls.stages import STAGES, AnnouncedCall, call_type

SUBSETS = [
    frozenset(subset)
    for subset in chain.from_iterable(combinations(Feature, count) for count in range(len(Feature) + 1))
]


def test_each_set_of_features_has_its_stages_in_their_order() -> None:
    for features in SUBSETS:
        made = call_type(features)
        order = [stage for feature, stage in STAGES.items() if feature in features]
        assert [base for base in made.__mro__ if base in order] == order, features
        assert issubclass(made, AnnouncedCall) == bool(features & {Feature.KEY, Feature.RECONCILER}), features
        assert made.announces == issubclass(made, AnnouncedCall), features


def test_a_plain_async_function_has_no_stage() -> None:
    async def charge(order: int) -> int:
        return order

    assert call_type(DurableCallable(charge).features) is DurableCall
