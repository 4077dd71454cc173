"""The embedding model ``wordllama:l2_supercat_256``: works offline, with weights from a wheel.

The wheel of wordllama has the weights of its smallest model, 16 MB, and a tokenizer. The vector of a text is
the mean of the vectors of its tokens. This module reads the two files, because the package itself downloads
them. Needs the extra ``wordllama``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic_ai.embeddings import EmbeddingModel, EmbeddingResult, EmbeddingSettings
from pydantic_ai.embeddings.result import EmbedInputType
from pydantic_ai.usage import RequestUsage
from typing_extensions import override

from flink_agents.api.errors import RetrievalError
from flink_agents.models.setup.extras import import_extra, missing_extra_error

PROVIDER = "wordllama"
MODEL = "l2_supercat_256"
DIMENSIONS = (64, 128, 256)
"""Valid lengths of its vectors, which are cut: the first numbers are the most significant."""

_loading = threading.Lock()


class _Weights(NamedTuple):
    """The tokenizer of the model, and a vector for each token's id."""

    tokenizer: Any
    vectors: NDArray[np.float16]


@lru_cache(maxsize=1)
def _load_weights() -> _Weights:
    """Read the model from the files of its package; MissingExtraError if it is not installed."""
    module_spec = importlib.util.find_spec("wordllama")
    if module_spec is None or module_spec.origin is None:
        raise missing_extra_error("wordllama", "the embedding model 'wordllama'", "no module 'wordllama'")
    home = Path(module_spec.origin).parent
    tokenizers = import_extra("tokenizers", "wordllama", "the embedding model 'wordllama'")
    safetensors = import_extra("safetensors.numpy", "wordllama", "the embedding model 'wordllama'")
    tokenizer = tokenizers.Tokenizer.from_file(str(home / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    (vectors,) = safetensors.load_file(str(home / "weights" / f"{MODEL}.safetensors")).values()
    return _Weights(tokenizer, vectors)


class WordLlamaEmbeddingModel(EmbeddingModel):
    """Embeds texts offline, with weights that a wheel brings.

    Args:
        model_name: Name of the model; the wheel has only the default.
        settings: Defaults of requests; ``dimensions`` is one of 64, 128 and 256.

    Raises:
        RetrievalError: The wheel has no such model.
    """

    def __init__(self, model_name: str = MODEL, *, settings: EmbeddingSettings | None = None) -> None:
        if model_name != MODEL:
            raise RetrievalError(
                f"wordllama has no model {model_name!r} that works offline",
                expected=f"{PROVIDER}:{MODEL}",
                found=model_name,
                fix="use that one",
            )
        super().__init__(settings=settings)

    @property
    @override
    def model_name(self) -> str:
        return MODEL

    @property
    @override
    def system(self) -> str:
        return PROVIDER

    @override
    async def embed(
        self,
        inputs: str | Sequence[str],
        *,
        input_type: EmbedInputType,
        settings: EmbeddingSettings | None = None,
    ) -> EmbeddingResult:
        texts, settings = self.prepare_embed(inputs, settings)
        dimensions = settings.get("dimensions", DIMENSIONS[-1])
        if dimensions not in DIMENSIONS:
            raise RetrievalError(
                f"{PROVIDER}:{MODEL} has no vectors of {dimensions} dimensions",
                expected="one of " + ", ".join(map(str, DIMENSIONS)),
                found=str(dimensions),
                fix="omit dimensions, or use one of these",
            )
        vectors, tokens = await asyncio.to_thread(_embed_texts, texts, dimensions)
        return EmbeddingResult(
            vectors.tolist(),
            inputs=texts,
            input_type=input_type,
            model_name=MODEL,
            provider_name=PROVIDER,
            usage=RequestUsage(input_tokens=tokens),
        )

    @override
    async def count_tokens(self, text: str) -> int:
        return len(_weights().tokenizer.encode(text, add_special_tokens=False).ids)


def _weights() -> _Weights:
    """Return the model; the first call reads it, and other threads wait for that."""
    with _loading:
        return _load_weights()


def _embed_texts(texts: list[str], dimensions: int) -> tuple[NDArray[np.float32], int]:
    """Return a vector of length 1 for each text, zeros for one without tokens; and the number of tokens."""
    tokenizer, token_vectors = _weights()
    vectors = np.zeros((len(texts), dimensions), np.float32)
    token_count = 0
    for row, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        token_ids = [token_id for token_id in encoding.ids if token_id < len(token_vectors)]
        token_count += len(token_ids)
        if token_ids:
            mean = token_vectors[token_ids, :dimensions].astype(np.float32).mean(axis=0)
            vectors[row] = mean / (np.linalg.norm(mean) or 1.0)
    return vectors, token_count
