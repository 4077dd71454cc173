"""The contents of records of durable calls: identities, requests, results, and errors about them."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from flink_agents import redaction
from flink_agents.api.action_state import RecordKind
from flink_agents.api.durable import IDEMPOTENCY_KEY, DurableCallable, takes_argument
from flink_agents.api.errors import (
    AgentConfigurationError,
    AgentsError,
    BranchesRecordedEarlierError,
    DurableResultError,
    NonDeterminismError,
    ResultTypeError,
    UnserializableValueError,
)
from flink_agents.api.resources.provenance import as_data
from flink_agents.plan.references import type_text
from flink_agents.runtime.durable.differences import difference
from flink_agents.runtime.durable.former_digests import former_digests
from flink_agents.runtime.durable.typed_results import result_type_of
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.journal.calls import Call, Mismatch, step_name
from flink_agents.runtime.journal.plans import SharedValues
from flink_agents.runtime.journal.records import RECORD_FRAME, CallIdentity, CallRecord
from flink_agents.runtime.serde import exceptions as failures
from flink_agents.runtime.serde.canonical import digest_with_fields
from flink_agents.runtime.serde.codec import UNCHANGING, ValueCodec, is_unchanging
from flink_agents.runtime.serde.declared_types import problems_text
from flink_agents.runtime.serde.raised_texts import AWAIT_IT

MAX_AWAITS = 5
"""The most foreign awaits that the error about a mismatch lists."""

_RETURN_LESS = "return what the run needs, or a reference to it"

REQUEST_CHARACTERS = 2000
"""The most characters of its request that the record of a call stores."""


_GAP = " ... "


class Arguments:
    """The arguments of a call, as they were when the call was made.

    They are encoded once, for the digest, and each attempt gets a decoded copy. So a change that a function
    makes to its arguments reaches neither the action nor another attempt.

    Args:
        codec: Encodes them.
        what: The callable.
        args: Arguments by position.
        kwargs: Arguments by name.

    Attributes:
        identity: The name of the callable, with digest and text of the arguments.
        key: The idempotency key of the call, once it is known.

    Raises:
        UnserializableValueError: An argument cannot be encoded.
    """

    __slots__ = ("_codec", "_data", "_plain", "_what", "identity", "key")

    def __init__(
        self, codec: ValueCodec, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._codec = codec
        self._what = what
        try:
            self._data = codec.encode([list(args), dict(kwargs)])
        except UnserializableValueError as error:
            raise _unfit_argument(what, error) from error
        values = (*args, *kwargs.values())
        plain = UNCHANGING.issuperset(map(type, values)) or all(map(is_unchanging, values))
        self._plain = (args, kwargs) if plain else None
        digest, fields = digest_with_fields(self._data)
        self.identity = CallIdentity(what.identity, digest, request_text(what, args, kwargs), fields)
        self.key: str | None = None

    def may_be(self, recorded: CallIdentity) -> bool:
        """Return True if ``recorded`` has the same values, in the classes and the passing of former code."""
        if recorded.function != self.identity.function:
            return False
        args, kwargs = self._plain or self._codec.decode(self._data)
        for passed in _passings(self._what, list(args), kwargs):
            data = self._codec.encode(passed)
            digests = [digest_with_fields(data)[0]]
            if recorded.fields is not None:
                digests = former_digests(self._codec, data, recorded.fields)
            if recorded.arguments in digests:
                return True
        return False

    def of(self, what: DurableCallable, clients: Mapping[str, Any]) -> partial[Any]:
        """Return the function of ``what`` bound to a copy of the arguments, and to open clients by name."""
        if self._plain is not None and not (what.wants_key or clients):
            args, kwargs = self._plain
            return partial(what.function, *args, **kwargs)
        return self._given_to(what, what.wants_key, clients)

    def of_reconciler(self, reconciler: Callable[..., Any], clients: Mapping[str, Any]) -> partial[Any]:
        """Return ``reconciler`` bound to a copy of the arguments, and to the key and clients it takes."""
        reconciler_clients = {
            name: client for name, client in clients.items() if takes_argument(reconciler, name)
        }
        return self._given_to(
            DurableCallable(reconciler), takes_argument(reconciler, IDEMPOTENCY_KEY), reconciler_clients
        )

    def _given_to(self, what: DurableCallable, wants_key: bool, clients: Mapping[str, Any]) -> partial[Any]:
        args, kwargs = self._plain or self._codec.decode(self._data)
        if wants_key and self.key is not None and IDEMPOTENCY_KEY not in kwargs:
            kwargs = {**kwargs, IDEMPOTENCY_KEY: self.key}
        if clients:
            args, kwargs = _with_clients(what.positional, args, kwargs, clients)
        return partial(what.function, *args, **kwargs)


def _passings(what: DurableCallable, args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the ways to pass these arguments by position and by name."""
    names = [name for name in what.positional if name not in what.clients]
    if len(args) > len(names):
        yield [args, dict(kwargs)]
        return
    values = [*args]
    for name in names[len(args) :]:
        if name not in kwargs:
            break
        values.append(kwargs[name])
    by_name = dict(zip(names, values, strict=False))
    remaining_kwargs = {name: value for name, value in kwargs.items() if name not in by_name}
    for count in range(len(values) + 1):
        yield [values[:count], {**dict(list(by_name.items())[count:]), **remaining_kwargs}]


def _unfit_argument(what: DurableCallable, error: UnserializableValueError) -> UnserializableValueError:
    """Return the error of a call with an argument that no record can hold."""
    if error.fix == AWAIT_IT:
        return error
    return UnserializableValueError(
        f"a durable call of {what.identity} has an argument that no record can hold: {error.message}",
        expected=error.expected,
        found=error.found,
        fix="pass plain values or a pydantic model. A session or a connection is a client of the agent, "
        "which DurableCallable(function, client='name') gives to the function",
    )


def _with_clients(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any], clients: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with its clients among them.

    A client is at the position of its parameter, so the function may take it first.

    Args:
        names: Parameters that take positional arguments.
        args: Arguments by position, without the clients.
        kwargs: Arguments by name, without the clients.
        clients: Open clients by name.
    """
    by_name = dict(clients)
    remaining_args = deque(args)
    positional_args = list[Any]()
    for name in names:
        if not remaining_args:
            break
        positional_args.append(by_name.pop(name) if name in by_name else remaining_args.popleft())
    return [*positional_args, *remaining_args], {**kwargs, **by_name}


def identity(
    codec: ValueCodec, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CallIdentity:
    """Return the identity of a call: name, digest and text of its arguments.

    Raises:
        UnserializableValueError: An argument cannot be encoded.
    """
    return Arguments(codec, what, args, kwargs).identity


def idempotency_key(step: ActionRun, call: Call) -> str:
    """Return the idempotency key of a call: 32 hex digits, equal for all attempts. BLAKE2b: RFC 7693."""
    run = step.run
    name = step_name(step.path, call.task)
    parts = (run.identity, step.shared.agent.name, run.key_text, run.sequence_number, name, call.index)
    path = "\x00".join(map(str, parts))
    return hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def encoded(codec: ValueCodec, what: DurableCallable, value: Any) -> bytes:
    """Return the bytes of a result.

    Raises:
        DurableResultError: It does not have the declared type, or cannot be encoded.
    """
    try:
        if what.result_type is not None:
            return result_type_of(what.result_type).encode(codec, value)
        return codec.encode(value)
    except ValidationError as error:
        raise DurableResultError(
            "the result does not fit result_type",
            expected=f"a result of the type {type_text(what.result_type)}",
            found=problems_text(error, value),
            fix="let the function return such a value, or correct result_type",
        ) from error
    except Exception as error:
        raise DurableResultError(f"{type(error).__name__}: {error}"[:1000]) from error


def decoded(codec: ValueCodec, what: DurableCallable, record: CallRecord, values: SharedValues | None) -> Any:
    """Return the recorded result.

    Args:
        codec: Decodes it.
        what: The callable.
        record: The record.
        values: The store of shared values; None if the result is not shared.
    """
    assert record.value is not None
    data = record.value if values is None else values.unpacked(record.value)
    if what.result_type is None:
        return codec.decode(data)
    # Pydantic made the value. So its messages count as data, like those of a record.
    return as_data(result_type_of(what.result_type).decode(codec, data, record.result_type))


def failure_kept(codec: ValueCodec, limit: int, call: Call, error: BaseException) -> dict[str, Any]:
    """Return the recorded form of a failure, cut to the size that its record can hold.

    Args:
        codec: Encodes it.
        limit: The most bytes of a record.
        call: The call that failed.
        error: The exception that it raised.
    """
    used_bytes = len(call.identity.pack(codec)) + RECORD_FRAME
    return failures.describe(codec, error, failures.room(limit, used_bytes))


def check_result_type(codec: ValueCodec, what: DurableCallable) -> None:
    """Check ``result_type`` before the function has any effect.

    Raises:
        AgentConfigurationError: Pydantic does not know that type.
        ResultTypeError: No record can hold its values.
    """
    try:
        unstorable = result_type_of(what.result_type).unstorable
    except Exception as error:  # a foreign type may raise anything where it is described
        raise AgentConfigurationError(
            f"the durable call of {what.identity} has a wrong result_type",
            expected="a type that pydantic describes, such as a model, a dataclass or list[str]",
            found=f"{type_text(what.result_type)}: {type(error).__name__}",
            fix="name such a type, or leave result_type out: results keep the types that they have",
        ) from error
    if unstorable is not None and not codec.allow_pickle:
        at = f" ({unstorable.where})" if unstorable.where is not None else ""
        raise ResultTypeError(
            f"the result_type of the durable call of {what.identity} has values that no record can hold",
            expected="plain values, pydantic models or dataclasses of them, or types that pydantic writes as "
            "JSON and reads back",
            found=f"{type_text(what.result_type)}: {unstorable.text}{at}",
            fix="leave that part out of the type, or give it such a type. The call was not made",
        )


def result_error(step: ActionRun, call: Call, refused: AgentsError) -> DurableResultError:
    """Return the error of a call whose result cannot be recorded."""
    fix = refused.fix if isinstance(refused, DurableResultError) and refused.fix else _RETURN_LESS
    return DurableResultError(
        f"what {call.identity.function} returned cannot be recorded: call {call.index} of action "
        f"{step.action.name!r}, key {step.run.key!r}, sequence {step.run.sequence_number}",
        expected=refused.expected or "plain values, pydantic models or dataclasses, within the store's limit",
        found=f"{refused.message}: {refused.found}" if refused.found else refused.message,
        fix=f"{fix}. The call took effect and is not repeated",
    )


def mismatch_error(step: ActionRun, mismatch: Mismatch) -> NonDeterminismError:
    """Return the error that shows the recorded call beside the one that the code made."""
    run = step.run
    number = mismatch.number
    what = "call" if number.kind is RecordKind.CALL else "wait"
    task = f" of its task {number.task}" if number.task else ""
    place = f"key {run.key!r}, sequence {run.sequence_number}, {what} {number.nth}{task}"
    if mismatch.flat:
        return BranchesRecordedEarlierError(
            f"a run of action {step.action.name!r} has branches that an earlier version recorded: {place}",
            expected="calls that are numbered within the branch that makes them",
            found="calls with one row of numbers for all branches, which says of none which branch made it",
            fix="finish these runs with the version that began them, or set action-state.on-mismatch to "
            "'rerun' (their effects are repeated) or 'dead-letter'",
        )
    recorded, requested = _call_texts(mismatch.recorded, mismatch.requested)
    return NonDeterminismError(
        f"a replay of action {step.action.name!r} does not make the calls that were recorded: {place}",
        expected=recorded,
        found=requested,
        fix=_fix(mismatch, list(step.delivery.awaits) if step.delivery is not None else []),
    )


_CHANGED = (
    "start the former code until these runs are done, or set action-state.on-mismatch to 'rerun' (recorded "
    "calls are made again) or 'dead-letter'"
)


def _fix(mismatch: Mismatch, awaits: list[str]) -> str:
    advice = (
        "let calls and their arguments follow from the event, memory, recorded results, ctx.now(), "
        "ctx.uuid4() and ctx.random() only, not from clocks, chance, globals or the order of sets "
        "(asyncio.as_completed over coroutines makes one: use ctx.as_completed, or give it tasks)"
    )
    if awaits:
        awaits_text = "; ".join(awaits[:MAX_AWAITS])
        advice = (
            f"the action also awaits what is not recorded: {awaits_text}. Make that a durable call. "
            f"And {advice}"
        )
    recorded = mismatch.recorded
    requested = mismatch.requested
    if isinstance(recorded, CallIdentity) and isinstance(requested, CallIdentity):
        if recorded.function != requested.function and recorded.arguments == requested.arguments:
            renamed = f"if you renamed {recorded.function} to {requested.function}, {_CHANGED}"
            return f"{renamed}. Otherwise {advice}"
    return f"{advice}. If you changed the code, {_CHANGED}"


def _call_texts(recorded: CallIdentity | str | None, requested: CallIdentity | str | None) -> tuple[str, str]:
    """Return the texts of two calls. Of two calls of one function, they show how the requests differ."""
    if not (isinstance(recorded, CallIdentity) and isinstance(requested, CallIdentity)):
        return _call_text(recorded), _call_text(requested)
    if recorded.function != requested.function or recorded.request is None or requested.request is None:
        return _call_text(recorded), _call_text(requested)
    if recorded.request == requested.request:
        classes = _class_texts(recorded, requested)
        difference_text = classes or "they differ in what the record does not show"
        return _call_text(recorded), f"{_call_text(requested)}: {difference_text}"
    recorded_text, after = difference(redaction.hide(recorded.request), redaction.hide(requested.request))
    return f"{recorded.function}({recorded_text})", f"{requested.function}({after})"


def _class_texts(recorded: CallIdentity, requested: CallIdentity) -> str:
    """Return the classes of arguments whose fields differ, as text."""
    recorded_fields = recorded.fields or {}
    after = requested.fields or {}
    texts = [f"no argument is a {name}" for name in recorded_fields if name not in after]
    for name, fields in recorded_fields.items():
        if name in after and sorted(fields) != sorted(after[name]):
            texts.append(f"{name} had the fields {', '.join(fields)}, and has {', '.join(after[name])}")
    return "; ".join(texts)


def _call_text(call: CallIdentity | str | None) -> str:
    if call is None:
        return "the end of the action"
    if isinstance(call, str):
        return call
    request = f"({call.request[:300]})" if call.request is not None else ""
    return f"{call.function}{request}, arguments {call.arguments.hex()[:12]}"


def request_text(what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments as text for people."""
    if what.request is not None:
        return what.request
    names: Sequence[str] = what.positional
    if what.clients:
        names = [name for name in what.positional if name not in what.clients]
    if len(names) < len(args):
        names = list(map(str, range(len(args))))
    named = [*zip(names, args, strict=False), *kwargs.items()]
    # An argument without a name may be one to redact.
    hidden = {*what.redact, *filter(str.isdecimal, dict(named))} if what.redact else ()
    shown: list[str] = []
    for name, value in named:
        shown.append(f"{name}={'...' if name in hidden else _shown(value)}")
    text = ", ".join(shown)
    if redaction.known_secrets.pattern is not None:
        text = redaction.hide_known(text)
    return text if len(text) <= REQUEST_CHARACTERS else _cut(text)


def _cut(text: str) -> str:
    """Return start and end of a long text."""
    tail = REQUEST_CHARACTERS // 3
    return f"{text[: REQUEST_CHARACTERS - tail - len(_GAP)]}{_GAP}{text[-tail:]}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
        if len(text) <= REQUEST_CHARACTERS:
            return text
        # Hide secrets before the cut: a piece of a secret would not be found.
        return _cut(redaction.hide_known(text))
    except Exception as error:
        return f"<{type(value).__qualname__}: repr raised {type(error).__name__}>"
