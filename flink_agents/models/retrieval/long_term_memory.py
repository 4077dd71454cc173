"""Long-term memory over a vector store: a collection for each job and scope, subjects in metadata.

Ids of items consist of the author's id and a digest of the subject, so that ids of different subjects differ.
All accesses are durable steps of the collection.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from typing_extensions import override

from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import DocumentError, OptionError
from flink_agents.api.models.retrieval import DEFAULT_K, Collection, LongTermMemory, MemoryItem, Summarise
from flink_agents.api.models.vector_filters import both_filters
from flink_agents.api.settings.options import AgentOptions
from flink_agents.api.vector_store import Document, DocumentUpdate, Filter, Scalar, check_field

_OWN = "memory."
"""Prefix of metadata entries that belong to long-term memory itself."""

_SUBJECT = f"{_OWN}subject"
_CREATED = f"{_OWN}created"
_RUN = f"{_OWN}run"
_ORDER = f"{_OWN}order"
_AGE = (_CREATED, _RUN, _ORDER)
"""Metadata that orders items by age: time, number of the run, and position among the action's writes."""

INSTRUCTION = (
    "Summarise what is remembered below in one short text. Keep names, dates, numbers and preferences; "
    "where two entries contradict each other, keep the later one. Answer with the summary alone.\n\n"
)
"""Instruction for a chat model that compacts a memory."""


class StoredMemory(LongTermMemory):
    """The long-term memory of one scope and subject, as one action uses it.

    Args:
        ctx: The context of the action.
        collection: Opens a collection of the vector store, by context and name.
        namespace: Namespace of all memories of a job; None for the job identifier.
        scope: A section of the memory that the author chooses, such as ``preferences``.
        subject: The person or thing that the memory is about; None for the key.
        chat_model: Name of the default chat model for summaries; None if there is none.
        written: Counts the items that this action writes, so that items of one time have an order.

    Raises:
        OptionError: There is neither a namespace nor a job identifier.
        DocumentError: A subject is of a type without a canonical text.
    """

    def __init__(
        self,
        ctx: RunnerContext,
        collection: Callable[[RunnerContext, str], Collection],
        namespace: str | None,
        scope: str,
        subject: Any,
        chat_model: str | None = None,
        written: Iterator[int] | None = None,
    ) -> None:
        name = namespace or ctx.config.get(AgentOptions.JOB_IDENTIFIER)
        if name is None:
            raise OptionError(
                "long-term memory has no permanent name, so another submission of the job would not find it",
                expected="the option job-identifier, or namespace=... in the description of the memory",
                fix="set job-identifier",
            )
        self._ctx = ctx
        check_text(scope, "the scope of a long-term memory")
        self._subject = subject_text(ctx.key if subject is None else subject)
        check_text(self._subject, "the subject of a long-term memory")
        self._prefix = hashlib.blake2b(self._subject.encode(), digest_size=12).hexdigest() + ":"
        self._chat_model = chat_model
        self._written = written or itertools.count()
        # The length marks the end of the name, whatever characters it has.
        self._items = collection(ctx, f"memory/{len(name)}/{name}/{scope}")

    # -- writing ----------------------------------------------------------------------

    @override
    async def add(
        self,
        text: str | Sequence[str],
        metadata: Mapping[str, Scalar] | None = None,
        ids: str | Sequence[str] | None = None,
    ) -> list[str]:
        texts = _check_texts(text)
        item_ids = [self._ctx.uuid4().hex for _ in texts] if ids is None else _check_texts(ids)
        if len(item_ids) != len(texts):
            raise DocumentError(
                "the numbers of ids and texts differ",
                expected=f"{len(texts)} ids",
                found=str(len(item_ids)),
                fix="omit ids, or pass one for each text",
            )
        documents = [
            Document(item_text, self._prefix + id, self._mark_metadata(metadata))
            for item_text, id in zip(texts, item_ids, strict=True)
        ]
        await self._items.add(documents)
        return item_ids

    @override
    async def update(
        self, id: str, text: str | None = None, metadata: Mapping[str, Scalar] | None = None
    ) -> bool:
        if metadata is None:
            previous_documents = await self._items.get([self._prefix + id])
            metadata = _authors_metadata(previous_documents[0].metadata) if previous_documents else None
        update = DocumentUpdate(self._prefix + id, text, self._mark_metadata(metadata))
        updated_ids = await self._items.update([update])
        return bool(updated_ids)

    @override
    async def delete(self, ids: str | Sequence[str] | None = None, filter: Filter | None = None) -> None:
        await self._items.delete(self._document_ids(ids), self._subject_filter(filter))

    def _mark_metadata(self, metadata: Mapping[str, Scalar] | None) -> dict[str, Scalar]:
        """Return the author's metadata, with entries for the subject and the age of an item.

        Raises:
            DocumentError: An entry is invalid, or has a reserved name.
        """
        for name, value in (metadata or {}).items():
            check_field(name, value, "(memory)")
            if name.startswith(_OWN):
                raise DocumentError(
                    f"metadata uses a name that long-term memory reserves: {name!r}",
                    expected=f"a name that does not start with {_OWN!r}",
                    fix="rename it",
                )
        milliseconds = int(self._ctx.now().timestamp() * 1000)
        age = (milliseconds, self._ctx.sequence_number, next(self._written))
        return {**(metadata or {}), _SUBJECT: self._subject, **dict(zip(_AGE, age, strict=True))}

    # -- reading ----------------------------------------------------------------------

    @override
    async def search(self, query: str, k: int = DEFAULT_K, filter: Filter | None = None) -> list[MemoryItem]:
        documents = await self._items.query(query, k, self._subject_filter(filter))
        return [self._item(document, document.score) for document in documents]

    @override
    async def get(
        self, ids: str | Sequence[str] | None = None, filter: Filter | None = None
    ) -> list[MemoryItem]:
        return [self._item(document) for document in await self._find_documents(ids, filter)]

    async def _find_documents(
        self, ids: str | Sequence[str] | None = None, filter: Filter | None = None
    ) -> list[Document]:
        """Return the subject's documents, the oldest first: those with ``ids``, or all that match."""
        documents = await self._items.get(self._document_ids(ids), self._subject_filter(filter))
        return sorted(
            documents, key=lambda document: ([document.metadata[name] for name in _AGE], document.id)
        )

    def _document_ids(self, ids: str | Sequence[str] | None) -> list[str] | None:
        """Return the documents' ids for ids of items, which are those of one subject; None for None."""
        return None if ids is None else [self._prefix + id for id in _check_texts(ids)]

    def _subject_filter(self, filter: Filter | None) -> Filter | None:
        """Return a filter that matches documents of the subject, which ``filter`` matches as well."""
        return both_filters({_SUBJECT: self._subject}, filter)

    def _item(self, document: Document, score: float | None = None) -> MemoryItem:
        """Return a document as an item of the memory, without the entries of the memory itself."""
        created = datetime.fromtimestamp(float(document.metadata[_CREATED]) / 1000, UTC)
        id = document.id.removeprefix(self._prefix)
        return MemoryItem(id, document.text, _authors_metadata(document.metadata), created, score)

    # -- compaction -------------------------------------------------------------------

    @override
    async def compact(
        self, summarise: Summarise | str | None = None, *, above: int = 20, keep: int = 10
    ) -> bool:
        documents = await self._find_documents()
        if len(documents) <= above or len(documents) - keep < 2:
            return False
        replaced_documents = documents[: len(documents) - keep]
        summary = await self._summary(summarise, [document.text for document in replaced_documents])
        # It is as old as the newest item that it replaces. Until the others are removed, nothing is missing.
        age = {name: replaced_documents[-1].metadata[name] for name in _AGE}
        metadata = {_SUBJECT: self._subject, **age, "summary": True}
        summary_document = Document(summary, self._prefix + self._ctx.uuid4().hex, metadata)
        await self._items.add([summary_document])
        await self._items.delete([document.id for document in replaced_documents])
        return True

    async def _summary(self, summarise: Summarise | str | None, texts: list[str]) -> str:
        """Return one text for several, from a function or a chat model, in a durable step."""
        summarise = summarise or self._chat_model
        if summarise is None:
            raise OptionError(
                "long-term memory has no chat model or function for summaries",
                expected="a function, the name of a chat model, or chat_model=... in the description",
                fix="pass one to compact()",
            )
        if isinstance(summarise, str):
            list_text = "\n".join(f"- {text}" for text in texts)
            answer = await self._ctx.chat(summarise, INSTRUCTION + list_text)
            return str(answer.output)
        call = DurableCallable(summarise, name="long_term_memory:summarise", result_type=str)
        return await self._ctx.durable_execute_async(call, texts)


def subject_text(subject: object) -> str:
    """Return a text that identifies a subject: those of 1 and "1" differ.

    Args:
        subject: A string, number, date, UUID, bytes, None, or a tuple of these.

    Raises:
        DocumentError: Its type has no unique text.
    """
    if isinstance(subject, str):
        return f"str:{subject}"
    if isinstance(subject, tuple):
        return "tuple:" + "".join(
            f"{len(member_text)}:{member_text}" for member_text in map(subject_text, subject)
        )
    if subject is None or isinstance(subject, bool | int | float | Decimal | uuid.UUID | date | bytes):
        return f"{type(subject).__name__}:{subject}"
    raise DocumentError(
        f"a {type(subject).__name__} cannot be the subject of a long-term memory",
        expected="a string, number, date, UUID, bytes, or a tuple of these",
        found=repr(subject)[:200],
        fix="pass subject=... with a string",
    )


def _authors_metadata(metadata: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the entries of metadata that the author set."""
    return {name: value for name, value in metadata.items() if not name.startswith(_OWN)}


def check_text(value: object, what: str) -> None:
    """Check that a value is a string that stores can hold.

    Args:
        value: The author's value.
        what: Its role in words, for the error.

    Raises:
        DocumentError: It is not a string, or has half of a surrogate pair.
    """
    problem = f"{type(value).__name__} {value!r}"[:200]
    if isinstance(value, str):
        try:
            value.encode()
            return
        except UnicodeEncodeError as error:
            problem = str(error)
    raise DocumentError(
        f"{what} is not a valid string",
        expected="a string that UTF-8 can encode",
        found=problem,
        fix="convert it",
    )


def _check_texts(values: str | Sequence[str]) -> list[str]:
    """Return one string, or several, as a list; DocumentError if one is not a valid string."""
    texts: list[Any] = list(values) if isinstance(values, list | tuple) else [values]
    for text in texts:
        check_text(text, "a text or an id for a long-term memory")
    return texts
