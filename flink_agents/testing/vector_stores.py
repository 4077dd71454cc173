"""A pytest suite with all requirements of a vector store, also for third parties.

::

    import pytest
    from flink_agents.testing.vector_stores import VectorStoreSuite

    class TestMyStore(VectorStoreSuite):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore({"path": str(tmp_path / "store")})

Each call of the fixture's function makes a store; all stores of a test share their documents, as the subtasks
of a job do. A store may keep and compare vectors with the precision of float32. An index may be approximate,
as long as it finds the nearest of some thousand documents.
"""

# ruff: noqa: D102 - the names of cases describe them.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flink_agents.api.errors import DocumentError, EmbeddingMismatchError, RetrievalError, VectorFilterError
from flink_agents.api.models.vector_filters import matches, parse_filter
from flink_agents.api.vector_store import Document, DocumentUpdate, Metadata, VectorSpace, VectorStore

SPACE = VectorSpace(2, "test:a")

METADATA: dict[str, Metadata] = {
    "a": {"year": 2020, "author": "Ada", "open": True},
    "b": {"year": 2021.5, "author": "Bo", "open": False},
    "c": {"year": 2022, "author": "ada"},
    "d": {"author": "", "open": True, "one": 1},
    "e": {},
    "f": {"year": "2020", "one": True},
    "g": {"year": -(2**63), "one": 1.0},
}
"""Documents to test filters on."""

FILTERS: list[dict[str, Any]] = [
    {},
    {"author": "Ada"},
    {"author": ""},
    {"author": {"$ne": "Ada"}},
    {"author": {"$in": ["Ada", "Bo"]}},
    {"author": {"$in": []}},
    {"author": {"$nin": ["Ada", "Bo"]}},
    {"author": {"$nin": []}},
    {"year": 2020},
    {"year": 2020.0},
    {"year": "2020"},
    {"year": {"$in": [2020, "2020"]}},
    {"year": {"$gt": 2020}},
    {"year": {"$gte": 2020}},
    {"year": {"$lt": 2021.5}},
    {"year": {"$lte": 2021.5}},
    {"year": {"$gt": 2020, "$lt": 2022}},
    {"year": {"$gt": 3000}},
    {"open": True},
    {"open": {"$ne": True}},
    {"one": 1},
    {"one": True},
    {"author": "Ada", "year": 2020},
    {"author": "Ada", "year": 2021},
    {"$and": [{"open": True}, {"year": {"$gte": 2020}}]},
    {"$or": [{"author": "Bo"}, {"year": {"$gt": 2021.5}}]},
    {"$or": [{"author": "Bo"}, {"$and": [{"open": True}, {"year": 2020}]}]},
    {"$or": [{"author": "Bo"}, {}]},
    {"$and": []},
    {"$or": []},
    {"$and": [{"open": True}, {"$or": []}]},
    {"nobody": 1},
    {"nobody": {"$ne": 1}},
]
"""Filters; ``matches`` decides which documents they match."""


NO_VECTORS: list[Any] = [
    (),
    [],
    [[1.0, 0.0]],
    [[]],
    [None, 1.0],
    ["1", "0"],
    "10",
    5.0,
    {0: 1.0, 1: 0.0},
    (float("nan"), 1.0),
    (float("inf"), 1.0),
    (1e300, 1.0),
]
"""Embeddings that are no vectors."""

NO_NUMBERS: list[Any] = [-1, -(2**63), 2**63, 10**30, True, False, 1.0, "1", None]
"""Values that are no number of documents; as a limit, 0 is none either, and None means all."""


def document(id: str, vector: Sequence[float] = (1.0, 0.0), text: str = "text", **metadata: Any) -> Document:
    """Return a document with an embedding; ``metadata`` are its fields."""
    return Document(text, id, metadata, vector)


def ids(documents: Sequence[Document]) -> list[str]:
    """Return the ids of documents."""
    return [stored_document.id for stored_document in documents]


class VectorStoreSuite:
    """All cases for a vector store; the module describes its use."""

    @pytest.fixture
    def make_store(self) -> Callable[[], VectorStore]:
        """Return a function that creates a store; each suite overrides this fixture."""
        raise NotImplementedError("override the fixture make_store")

    @pytest.fixture
    def make(self, make_store: Callable[[], VectorStore]) -> Iterator[Callable[[], VectorStore]]:
        """Provide the function of ``make_store``; its stores are closed after the test."""
        stores: list[VectorStore] = []

        def make() -> VectorStore:
            stores.append(make_store())
            return stores[-1]

        yield make
        for store in stores:
            store.close()

    @pytest.fixture
    def store(self, make: Callable[[], VectorStore]) -> VectorStore:
        """Provide a store, which is closed after the test."""
        return make()

    # -- stored content ---------------------------------------------------------------

    def test_documents_come_back_as_they_were(self, store: VectorStore) -> None:
        texts = ["", " ", "x" * 100_000, "é\u0301", "日本\U0001f600", "'\"\\%\n\t"]
        documents = [document(f"d{n}", (0.25, -1.5), text, n=n, s=text[:20]) for n, text in enumerate(texts)]
        store.add("c", SPACE, documents)
        stored_documents = store.get("c", embeddings=True)
        assert stored_documents == documents
        assert [type(stored_document.metadata["n"]) for stored_document in stored_documents] == [int] * len(
            texts
        )
        assert store.get("c") == [
            Document(added_document.text, added_document.id, added_document.metadata)
            for added_document in documents
        ]

    def test_metadata_keeps_its_types(self, store: VectorStore) -> None:
        fields = {"i": 2**62 + 1, "f": 0.1, "b": True, "s": "1", "no": False, "zero": 0}
        store.add("c", SPACE, [document("a", **fields)])
        metadata = store.get("c")[0].metadata
        assert {name: (type(value), value) for name, value in metadata.items()} == {
            name: (type(value), value) for name, value in fields.items()
        }

    @pytest.mark.parametrize("name", ["a", "a b", "ünïcode", "x" * 300, "memory/1/j/default", "A", "fa-a"])
    def test_any_text_names_a_collection(self, store: VectorStore, name: str) -> None:
        store.add(name, SPACE, [document("a")])
        store.add("other one", SPACE, [document("b")])
        assert ids(store.get(name)) == ["a"]
        assert store.collections() == sorted([name, "other one"])

    def test_any_text_is_an_id(self, store: VectorStore) -> None:
        names = ["a", "A", "a b", "é", "e\u0301", "'", "%", "x" * 500, "0", "00", "\U0001f600"]
        store.add("c", SPACE, [document(name, text=f"text {name}") for name in names])
        assert ids(store.get("c")) == sorted(names)
        for name in names:
            assert [stored_document.text for stored_document in store.get("c", [name])] == [f"text {name}"]

    def test_stores_share_their_documents(self, make: Callable[[], VectorStore]) -> None:
        first = make()
        second = make()
        first.add("c", SPACE, [document("a")])
        assert ids(second.query("c", SPACE, (1.0, 0.0), 5)) == ["a"]
        second.add("c", SPACE, [document("b")])
        second.update("c", SPACE, [DocumentUpdate("a", embedding=(0.0, 1.0))])
        assert ids(first.query("c", SPACE, (1.0, 0.0), 5)) == ["b", "a"]
        second.add("c", SPACE, [document("c", (1.0, 0.5))])
        assert ids(first.query("c", SPACE, (1.0, 0.0), 2)) == ["b", "c"]
        second.delete("c", ["b"])
        assert ids(first.query("c", SPACE, (1.0, 0.0), 2)) == ["c", "a"]

    def test_what_was_closed_is_there_again(self, make: Callable[[], VectorStore]) -> None:
        store = make()
        store.add("c", SPACE, [document("a", x=1)])
        store.close()
        assert ids(make().get("c", filter={"x": 1})) == ["a"]
        assert store.space("c") == SPACE

    # -- writing ----------------------------------------------------------------------

    def test_adding_again_changes_nothing(self, store: VectorStore) -> None:
        documents = [document("a", x=1), document("b", (0.0, 1.0), y="z")]
        for _ in range(2):
            store.add("c", SPACE, documents)
            assert store.get("c", embeddings=True) == documents
            assert store.count("c") == 2
            assert ids(store.query("c", SPACE, (0.0, 1.0), 2)) == ["b", "a"]

    def test_a_document_takes_the_place_of_one_with_its_id(self, store: VectorStore) -> None:
        store.add("c", SPACE, [document("a", text="old", x=1, gone=True)])
        new = document("a", (0.0, 1.0), "new", x=2)
        store.add("c", SPACE, [new])
        assert store.get("c", embeddings=True) == [new]
        assert store.count("c", {"gone": True}) == store.count("c", {"x": 1}) == 0
        assert store.query("c", SPACE, (0.0, 1.0), 1)[0].score == pytest.approx(1.0, abs=1e-5)

    def test_the_last_of_several_with_one_id_stays(self, store: VectorStore) -> None:
        store.add("c", SPACE, [document("a", text="first", x=1), document("a", text="last", y=1)])
        assert store.get("c") == [Document("last", "a", {"y": 1})]
        assert store.count("c", {"x": 1}) == 0

    @pytest.mark.parametrize("vector", NO_VECTORS, ids=repr)
    def test_what_is_no_vector_is_refused(self, store: VectorStore, vector: Any) -> None:
        space = VectorSpace(len(vector) if isinstance(vector, list | tuple) else 2, "test:a")
        with pytest.raises(DocumentError):
            store.add("c", space, [document("a", vector)])
        # The collection can still be filled.
        store.add("c", SPACE, [document("a")])
        with pytest.raises(DocumentError):
            store.add("c", SPACE, [document("b"), document("c", vector)])
        with pytest.raises(DocumentError):
            store.update("c", SPACE, [DocumentUpdate("a", embedding=vector)])
        with pytest.raises(RetrievalError):
            store.query("c", SPACE, vector, 1)
        assert store.get("c", embeddings=True) == [document("a")]
        assert (store.space("c"), ids(store.query("c", SPACE, (1.0, 0.0), 5))) == (SPACE, ["a"])

    @pytest.mark.parametrize("vector", [(1.0,), (1.0, 0.0, 0.0)], ids=repr)
    def test_a_vector_has_the_length_of_its_space(self, store: VectorStore, vector: Sequence[float]) -> None:
        with pytest.raises(EmbeddingMismatchError):
            store.add("c", SPACE, [document("a", vector)])
        store.add("c", SPACE, [document("a")])
        with pytest.raises(EmbeddingMismatchError):
            store.add("c", SPACE, [document("b"), document("c", vector)])
        with pytest.raises(EmbeddingMismatchError):
            store.update("c", SPACE, [DocumentUpdate("a", embedding=vector)])
        with pytest.raises(EmbeddingMismatchError):
            store.query("c", SPACE, vector, 1)
        assert store.get("c", embeddings=True) == [document("a")]

    def test_updates_change_what_they_name(self, store: VectorStore) -> None:
        store.add("c", SPACE, [document("a", x=1), document("b", x=1)])
        assert store.update("c", None, [DocumentUpdate("a", text="new")]) == ["a"]
        assert store.get("c", ["a"], embeddings=True) == [document("a", text="new", x=1)]
        assert store.update("c", None, [DocumentUpdate("a", metadata={"y": 2})]) == ["a"]
        assert store.get("c", ["a"]) == [Document("new", "a", {"y": 2})]
        assert store.count("c", {"x": 1}) == 1
        assert store.update("c", SPACE, [DocumentUpdate("a", embedding=(0.0, 1.0))]) == ["a"]
        assert ids(store.query("c", SPACE, (0.0, 1.0), 2)) == ["a", "b"]
        store.update("c", None, [DocumentUpdate("a", metadata={})])
        assert store.get("c", ["a"]) == [Document("new", "a")]

    def test_an_update_makes_no_document(self, store: VectorStore) -> None:
        assert store.update("c", None, [DocumentUpdate("a", text="x")]) == []
        store.add("c", SPACE, [document("a")])
        assert store.update("c", None, [DocumentUpdate("no", "x"), DocumentUpdate("a", "y")]) == ["a"]
        assert ids(store.get("c")) == ["a"]

    def test_deleting(self, store: VectorStore) -> None:
        store.delete("c", ["a"])
        store.add("c", SPACE, [document(id, n=n) for n, id in enumerate("abcdef")])
        for _ in range(2):
            store.delete("c", ["a", "nobody"])
            assert ids(store.get("c")) == list("bcdef")
        store.delete("c", filter={"n": {"$gte": 4}})
        assert ids(store.get("c")) == list("bcd")
        store.delete("c", ["b", "c"], {"n": 2})
        assert ids(store.get("c")) == ids(store.query("c", SPACE, (1.0, 0.0), 9)) == list("bd")
        store.delete("c", [])
        assert store.count("c") == 2

    def test_a_collection_that_was_removed_has_no_space(self, store: VectorStore) -> None:
        store.add("c", SPACE, [document("a", x=1)])
        store.add("d", SPACE, [document("a")])
        store.delete("c")
        store.delete("c")
        assert (store.space("c"), store.count("c"), store.collections()) == (None, 0, ["d"])
        other_space = VectorSpace(3, "test:b")
        store.add("c", other_space, [document("a", (1.0, 0.0, 0.0))])
        assert (store.space("c"), store.count("c", {"x": 1})) == (other_space, 0)

    # -- reading ----------------------------------------------------------------------

    def test_a_collection_that_is_not_there_is_empty(self, store: VectorStore) -> None:
        assert store.space("c") is None
        assert store.get("c") == store.query("c", SPACE, (1.0, 0.0), 3) == store.collections() == []
        assert store.get("c", ["a"], {"x": 1}) == []
        assert store.count("c") == store.count("c", {"x": 1}) == 0

    def test_get_by_ids_limit_and_offset(self, store: VectorStore) -> None:
        store.add("c", SPACE, [document(id, n=n) for n, id in enumerate("fedcba")])
        assert ids(store.get("c")) == list("abcdef")
        assert ids(store.get("c", ["e", "b", "nobody", "b"])) == ["b", "e"]
        assert store.get("c", []) == []
        assert ids(store.get("c", limit=2, offset=1)) == ["b", "c"]
        assert ids(store.get("c", offset=5, limit=9)) == ["f"]
        assert ids(store.get("c", ["a", "f"], {"n": 0})) == ["f"]

    @pytest.mark.parametrize("limit", [0, *(limit for limit in NO_NUMBERS if limit is not None)], ids=repr)
    def test_a_limit_is_a_number_of_documents(self, store: VectorStore, limit: Any) -> None:
        store.add("c", SPACE, [document(id) for id in "abc"])
        for collection, names in (("c", None), ("c", ["a", "b"]), ("nobody", None)):
            with pytest.raises(VectorFilterError, match="limit"):
                store.get(collection, names, limit=limit)
        assert ids(store.get("c", limit=1)) == ["a"]
        assert ids(store.get("c", limit=2**63 - 1)) == list("abc")

    @pytest.mark.parametrize("offset", NO_NUMBERS, ids=repr)
    def test_an_offset_is_a_number_of_documents(self, store: VectorStore, offset: Any) -> None:
        store.add("c", SPACE, [document(id) for id in "abc"])
        with pytest.raises(VectorFilterError, match="offset"):
            store.get("c", offset=offset)
        assert store.get("c", offset=2**63 - 1) == []

    @pytest.mark.parametrize("k", [0, *NO_NUMBERS], ids=repr)
    def test_a_query_is_for_a_number_of_documents(self, store: VectorStore, k: Any) -> None:
        store.add("c", SPACE, [document(id) for id in "abc"])
        with pytest.raises(VectorFilterError, match="k is no"):
            store.query("c", SPACE, (1.0, 0.0), k)

    @pytest.mark.parametrize("filter", FILTERS, ids=str)
    def test_filters(self, store: VectorStore, filter: dict[str, Any]) -> None:
        store.add("c", SPACE, [Document("t", id, metadata, (1.0, 0.0)) for id, metadata in METADATA.items()])
        meant = sorted(id for id, metadata in METADATA.items() if matches(parse_filter(filter), metadata))
        assert ids(store.get("c", filter=filter)) == meant
        assert ids(store.query("c", SPACE, (1.0, 0.0), 20, filter)) == meant
        assert store.count("c", filter) == len(meant)
        assert ids(store.get("c", ["a", "c", "e"], filter)) == [id for id in "ace" if id in meant]

    def test_filters_are_of_one_collection(self, store: VectorStore) -> None:
        store.add("c", SPACE, [document("a", x=1)])
        store.add("d", SPACE, [document("a", x=1), document("b", x=1)])
        assert (store.count("c", {"x": 1}), store.count("d", {"x": 1})) == (1, 2)
        store.delete("d", filter={"x": 1})
        assert (store.count("c", {"x": 1}), store.count("d", {"x": 1})) == (1, 0)

    def test_names_of_fields_are_data(self, store: VectorStore) -> None:
        names = ["a.b", "a b", "'", '"', "é", "x" * 100, "id", "text", "row", "%"]
        store.add("c", SPACE, [Document("t", f"d{n}", {name: n}, (1.0, 0.0)) for n, name in enumerate(names)])
        for number, name in enumerate(names):
            assert ids(store.get("c", filter={name: number})) == [f"d{number}"]

    # -- nearness ---------------------------------------------------------------------

    def test_the_nearest_come_first(self, store: VectorStore) -> None:
        vectors = {"a": (1.0, 0.0), "b": (3.0, 3.0), "c": (0.0, 0.5), "d": (-2.0, 0.0)}
        store.add("c", SPACE, [document(id, vector) for id, vector in vectors.items()])
        results = store.query("c", SPACE, (5.0, 0.0), 4)
        assert ids(results) == ["a", "b", "c", "d"]
        assert [result.score for result in results] == pytest.approx([1.0, 0.5**0.5, 0.0, -1.0], abs=1e-5)
        assert [(result.text, result.embedding) for result in results] == [("text", None)] * 4
        assert ids(store.query("c", SPACE, (5.0, 0.0), 2)) == ["a", "b"]

    def test_equal_scores_are_in_the_order_of_ids(self, store: VectorStore) -> None:
        store.add("c", SPACE, [document(id) for id in "gcaebfd"])
        assert ids(store.query("c", SPACE, (1.0, 0.0), 3)) == ["a", "b", "c"]

    def test_many_documents(self, store: VectorStore) -> None:
        count = 3000
        documents = [document(f"{n:05}", (1.0, n / count), n=n, even=n % 2 == 0) for n in range(count)]
        store.add("c", SPACE, documents)
        assert store.count("c") == count
        assert ids(store.get("c", offset=count - 2)) == ["02998", "02999"]
        filter = {"n": {"$gte": 1500}}
        assert store.count("c", filter) == 1500
        assert ids(store.query("c", SPACE, (1.0, 0.0), 1, filter)) == ["01500"]
        assert len(store.get("c", [added_document.id for added_document in documents])) == count
        store.delete("c", filter={"even": True})
        assert store.count("c") == count // 2

    # -- spaces -----------------------------------------------------------------------

    @pytest.mark.parametrize("other", [VectorSpace(3, "test:a"), VectorSpace(2, "test:b"), VectorSpace(3)])
    def test_another_space_is_refused(self, store: VectorStore, other: VectorSpace) -> None:
        store.add("c", SPACE, [document("a")])
        vector = (1.0,) * other.dimension
        with pytest.raises(EmbeddingMismatchError, match="'c'"):
            store.add("c", other, [document("b", vector)])
        with pytest.raises(EmbeddingMismatchError, match="'c'"):
            store.query("c", other, vector, 1)
        with pytest.raises(EmbeddingMismatchError, match="'c'"):
            store.update("c", other, [DocumentUpdate("a", embedding=vector)])
        assert store.get("c", embeddings=True) == [document("a")]
        assert store.space("c") == SPACE

    def test_a_space_without_a_model_fits_by_its_length(self, store: VectorStore) -> None:
        store.add("c", SPACE, [document("a")])
        assert ids(store.query("c", VectorSpace(2), (1.0, 0.0), 1)) == ["a"]

    # -- threads ----------------------------------------------------------------------

    def test_threads_write_and_read_at_once(self, store: VectorStore) -> None:
        def write(thread: int) -> None:
            for n in range(10):
                store.add("c", SPACE, [document(f"{thread}-{n}", _direction(thread, n), thread=thread)])
                assert store.count("c", {"thread": thread}) == n + 1
                assert store.query("c", SPACE, (1.0, 0.0), 100, {"thread": thread}) != []

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(write, range(4)))
        assert store.count("c") == 40
        for thread, n in ((0, 0), (3, 9)):
            assert ids(store.query("c", SPACE, _direction(thread, n), 1)) == [f"{thread}-{n}"]


def _direction(thread: int, n: int) -> tuple[float, float]:
    """Return a vector that only this document of this thread has."""
    return (1.0, (10 * thread + n) / 40)
