"""Embedding models as resources: ``provider:model``, each request a recorded call.

A request has one batch of texts; the batches of one call run concurrently. The record of a request holds the
model, and the vectors as float32 numbers: a replay returns exactly the same vectors.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from typing_extensions import override

from flink_agents import redaction
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import DurableCallable, RetryableError
from flink_agents.api.errors import AgentsError, EmbeddingMismatchError, RetrievalError
from flink_agents.api.models.chat import Endpoint
from flink_agents.api.models.retrieval_specs import EmbeddingModelSpec
from flink_agents.api.resources import ResourceType
from flink_agents.api.resources.providers import CheckedOptions, DeclaredResource, ResourceProvider
from flink_agents.api.resources.raised_notes import attribute_of
from flink_agents.api.resources.sendable_text import sendable
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.api.vector_store import VectorSpace
from flink_agents.models.setup.bodies import bound_bodies
from flink_agents.models.setup.classes import check_ready, create_instance
from flink_agents.models.setup.descriptions import checked_options, configure_description, read_description
from flink_agents.models.setup.extras import check_installed, extra_of, missing_extra_error
from flink_agents.models.setup.failures import failed_attempt, may_succeed_again, was_not_sent
from flink_agents.models.setup.limiter import RequestLimiter
from flink_agents.models.setup.secrets import Secrets

InputType = Literal["query", "document"]
"""The use of texts: models may embed a query in another way than the documents that it shall find."""

_CHAT_ONLY = frozenset({"anthropic", "groq", "huggingface", "mistral", "xai"})
"""Providers of chat models without embedding models: no package would help."""

_MOST_CHARACTERS = 2000
"""Maximum number of characters of a provider's message in an error."""


@dataclass(frozen=True)
class Embeddings:
    """Vectors of several texts, in their order.

    Attributes:
        space: Their common vector space.
        blobs: Each vector as float32 numbers, the lowest byte first.
    """

    space: VectorSpace
    blobs: tuple[bytes, ...]

    def lists(self) -> list[list[float]]:
        """Return the vectors as lists of numbers."""
        return [np.frombuffer(blob, "<f4").tolist() for blob in self.blobs]


class EmbeddingModelResource:
    """An embedding model of an agent, in one subtask.

    Args:
        declared: The resource as its author declared it.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._declared = declared
        self._model_lock = threading.Lock()
        self._model: Any = None
        self._headers: dict[str, str] = {}
        self._configured_spec: EmbeddingModelSpec | None = None
        self._limiter = RequestLimiter(None, None)
        self._secrets = Secrets(f"the embedding model {self.name!r}")
        self._call = DurableCallable(self._request_vectors, name=f"embed:{self.name}")

    @property
    def description(self) -> EmbeddingModelSpec:
        """The description of the model. After the first use, it has the options of the job."""
        return self._configured_spec or read_description(EmbeddingModelSpec, self._declared.arguments)

    def configure(self, ctx: RunnerContext) -> EmbeddingModelSpec:
        """Return the description of the model, overridden by the options of the job.

        The first call also sets limits and retries of requests.

        Raises:
            OptionError: An option is unknown or invalid.
        """
        if self._configured_spec is None:
            spec = configure_description(
                EmbeddingModelSpec, AgentOptions.EMBEDDING_MODELS, self._declared, ctx.config
            )
            self._configured_spec = spec
            self._limiter = RequestLimiter(spec.max_concurrency, spec.rate_limit)
            retry_on = (RetryableError, EmbeddingMismatchError)
            policy = RetryPolicy(**spec.retry.model_dump(), retry_on=retry_on)
            self._call = replace(self._call, retry=policy)
        return self._configured_spec

    async def embed(
        self, ctx: RunnerContext, texts: Sequence[str], input_type: InputType = "document"
    ) -> Embeddings:
        """Return the vectors of texts, in their order; each batch is a durable step, and all run at once.

        Args:
            ctx: The context of the action.
            texts: The texts, at least one.
            input_type: The use of the texts.

        Raises:
            EmbeddingMismatchError: The model returned vectors of several lengths, or too few.
            RetrievalError: A request failed in all its attempts.
        """
        size = self.configure(ctx).batch_size
        batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        calls = [ctx.durable_execute_async(self._call, batch, input_type) for batch in batches]
        try:
            answers = [await calls[0]] if len(calls) == 1 else await ctx.gather(*calls)
        except RetryableError as error:
            raise RetrievalError(
                f"the embedding model {self.name!r} did not answer",
                found=str(error),
                fix="check the service, or raise retry of the embedding model",
            ) from None
        spaces = {VectorSpace(answer["dimension"], answer["model"]) for answer in answers}
        if len(spaces) != 1:
            raise EmbeddingMismatchError(
                f"the embedding model {self.name!r} returned vectors that cannot be compared",
                expected="vectors of one model and one length",
                found="; ".join(sorted(f"{space.dimension} dimensions of {space.model}" for space in spaces)),
                fix="the model changed while a run was in flight: restart the run with "
                "action-state.on-mismatch: rerun, or finish it with the previous model",
            )
        (space,) = spaces
        width = 4 * space.dimension
        blobs = [
            answer["vectors"][start : start + width]
            for answer in answers
            for start in range(0, len(answer["vectors"]), width)
        ]
        return Embeddings(space, tuple(blobs))

    async def _request_vectors(self, texts: list[str], input_type: InputType) -> dict[str, Any]:
        """Send a batch of texts to the model, and return the record of their vectors: one attempt of a step.

        Raises:
            RetryableError: The request failed; another attempt may succeed.
            EmbeddingMismatchError: The vectors are not those that were requested.
            RetrievalError: The model rejected the request.
        """
        # Importing a provider's packages takes seconds, which must not block the agent loop.
        model = await asyncio.to_thread(self._get_model)
        settings: dict[str, Any] = {"extra_headers": self._headers} if self._headers else {}
        if self.description.dimensions is not None:
            settings["dimensions"] = self.description.dimensions
        if self.description.truncate:
            settings["truncate"] = True
        async with self._limiter:
            deadline = asyncio.timeout(self.description.timeout)
            try:
                async with deadline:
                    result = await model.embed(sendable(texts), input_type=input_type, settings=settings)
                return self._check_vectors(texts, result.embeddings, result.usage.input_tokens)
            except AgentsError:
                raise
            except Exception as error:  # the library of the provider can raise anything
                if not (isinstance(error, TimeoutError) and deadline.expired()):
                    raise self._failure_error(error) from None
                seconds = f"{self.description.timeout:g} s"
                raise RetryableError(
                    f"{self.description.model} returned no vectors within {seconds}"
                ) from None

    def _check_vectors(
        self, texts: list[str], vectors: Sequence[Sequence[float]], tokens: int
    ) -> dict[str, Any]:
        """Return the record of an answer; EmbeddingMismatchError if it is not one vector for each text.

        Args:
            texts: The texts of the request.
            vectors: The vectors of the answer.
            tokens: Number of tokens of the texts, as the model reports it.
        """
        model = self.description.model
        dimensions = self.description.dimensions
        matrix = _pack_vectors(vectors)
        if (
            matrix is None
            or len(matrix) != len(texts)
            or (dimensions is not None and matrix.shape[1] != dimensions)
        ):
            length_text = f" of {dimensions} dimensions" if dimensions else " of one length"
            raise EmbeddingMismatchError(
                f"the embedding model {self.name!r} ({model}) returned other vectors than requested",
                expected=f"{len(texts)} vectors{length_text}",
                found=_shape_of(vectors),
                fix="correct 'dimensions' in its description, or leave it out",
            )
        if not np.isfinite(matrix).all():
            raise EmbeddingMismatchError(
                f"the embedding model {self.name!r} ({model}) returned invalid numbers",
                expected="finite numbers",
                fix="check the model's answers for these texts",
            )
        return {
            "model": model,
            "dimension": matrix.shape[1],
            "vectors": matrix.tobytes(),
            "tokens": tokens if 0 <= tokens < 2**53 else 0,
        }

    def _failure_error(self, error: Exception) -> Exception:
        """Return the error of a failed attempt, without secrets: RetryableError if another may succeed."""
        from pydantic_ai.exceptions import UserError

        from flink_agents.models.setup.model_failures import is_of_a_test, requested_wait, with_causes

        if is_of_a_test(error):
            return error
        text = f"{type(error).__name__}: {self._secrets.hide(with_causes(error))}"[:_MOST_CHARACTERS]
        status: int | None = attribute_of(error, "status_code")
        # Without a status, the provider was not reached, or its answer is unreadable.
        is_unsent = isinstance(error, UserError) or was_not_sent(error)
        is_transient = not is_unsent if status is None else may_succeed_again(status)
        if not is_transient:
            return RetrievalError(
                f"the embedding model {self.name!r} rejected the request",
                found=text,
                fix="correct the model's name, its key or the texts; the request is not sent again",
            )
        retry_after = requested_wait(error)
        limit = self.description.retry_after_limit
        retryable = failed_attempt(f"the embedding model {self.name!r}", text, retry_after, limit)
        return retryable or RetrievalError(
            f"the embedding model {self.name!r} asks to wait too long",
            expected=f"at most {limit:g} seconds, which is retry_after_limit",
            found=f"{retry_after:g} seconds; {text}",
            fix="raise retry_after_limit of the embedding model",
        )

    def _get_model(self) -> Any:
        """Return the model of pydantic-ai for this subtask; the first call creates it, in a thread."""
        with self._model_lock:
            if self._model is None:
                name = self.description.connection
                connection = None
                if name is not None:
                    connection = self._declared.get(name, ResourceType.CHAT_MODEL_CONNECTION)
                connection_headers = connection.headers if isinstance(connection, Endpoint) else {}
                self._headers = self._secrets.headers({**connection_headers, **self.description.headers})
                if self._declared.clazz:
                    self._model = self._create_from_class(self._declared.clazz)
                else:
                    self._model = make_model(self.description, self._secrets, connection)
            return self._model

    def _create_from_class(self, clazz: str) -> Any:
        """Return the model that a class or function, ``module:qualname``, creates from the options."""
        from pydantic_ai.embeddings import EmbeddingModel

        what = f"the embedding model {self.name!r}"
        return create_instance(clazz, EmbeddingModel, what, **self.description.options)

    async def aclose(self) -> None:
        """Close the connections of the model."""
        model = self._model
        self._model = None
        client = getattr(getattr(model, "_provider", None), "client", None)
        close = getattr(client, "close", None)
        if close is not None:
            closing = close()
            if inspect.isawaitable(closing):
                await closing


def _pack_vectors(vectors: Any) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """Return vectors as rows of float32 numbers; None if they are empty, or of several lengths."""
    try:
        numbers = np.asarray(vectors)
        if numbers.ndim != 2 or numbers.shape[1] == 0 or numbers.dtype.kind not in "fiu":
            return None
        with np.errstate(over="ignore"):
            return np.asarray(numbers, "<f4")
    except ValueError:
        return None


def _shape_of(vectors: Any) -> str:
    """Return the form of an answer in words, for the error about one that is not as requested."""
    if not isinstance(vectors, Sequence):
        return type(vectors).__name__
    shapes = {_shape_of_vector(vector) for vector in cast("Sequence[Any]", vectors)}
    return f"{len(cast('Sequence[Any]', vectors))} vectors of {', '.join(sorted(shapes)) or 'no dimensions'}"


def _shape_of_vector(vector: Any) -> str:
    if not isinstance(vector, Sequence | np.ndarray) or isinstance(vector, str):
        return f"the type {type(vector).__name__}"
    numbers = cast("Sequence[Any]", vector)
    kinds = {type(number).__name__ for number in numbers if not isinstance(number, int | float | np.number)}
    return f"{len(numbers)} dimensions" + (f" with {', '.join(sorted(kinds))}" if kinds else "")


def make_model(description: EmbeddingModelSpec, secrets: Secrets, connection: Any = None) -> Any:
    """Create the model of pydantic-ai that a description names.

    Args:
        description: The description of the embedding model, with the options of the job.
        secrets: Resolves references to secrets, and hides the secrets in errors.
        connection: The connection that it names: an ``Endpoint``, or a provider of pydantic-ai; None without.

    Raises:
        MissingExtraError: Packages of its provider are not installed.
        RetrievalError: The model does not exist.
    """
    provider, _, name = description.model.partition(":")
    what = f"the embedding model {description.model!r}"
    if provider == "wordllama":
        from flink_agents.models.retrieval.wordllama import WordLlamaEmbeddingModel

        return WordLlamaEmbeddingModel(name)
    check_installed(provider if provider not in _CHAT_ONLY else "", what)
    from pydantic_ai.embeddings import TestEmbeddingModel, infer_embedding_model
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

    if provider == "test":
        return TestEmbeddingModel(name)
    endpoint = connection if isinstance(connection, Endpoint) else None
    provider_arguments = secrets.arguments(endpoint, description)

    def make_provider(kind: str) -> Any:
        if isinstance(connection, Provider):
            return connection
        if provider_arguments:
            return infer_provider_class(kind)(**provider_arguments)
        return infer_provider(kind)

    try:
        model = infer_embedding_model(description.model, provider_factory=make_provider)
    except ImportError as error:
        raise missing_extra_error(extra_of(provider), what, secrets.hide(error)) from error
    except (UserError, ValueError, TypeError) as error:
        raise RetrievalError(
            f"{what} cannot be created",
            expected="'provider:model', as pydantic-ai names it, with the arguments that its provider needs",
            found=secrets.hide(error, 500),
            fix="correct its name, or set base_url and api_key in the description",
        ) from None
    client: Any = getattr(getattr(model, "_provider", None), "client", None)
    redaction.add_secrets(getattr(client, "api_key", None))
    if hasattr(client, "max_retries"):
        # A repeated request is an attempt of the recorded call, which honours retry-after.
        client.max_retries = 0
    bound_bodies(client, description.response_limit)
    return model


class EmbeddingModelProvider(ResourceProvider):
    """Provides resources of the kind ``embedding_model``."""

    @override
    def load(self) -> None:
        if importlib.util.find_spec("pydantic_ai") is not None:
            importlib.import_module("pydantic_ai.embeddings")

    @override
    def check_declared(self, name: str, clazz: str, arguments: Mapping[str, Any]) -> None:
        model = read_description(EmbeddingModelSpec, arguments).model
        provider = model.partition(":")[0]
        if not clazz and provider not in _CHAT_ONLY:
            check_installed(provider, f"the embedding model {name!r}, {model!r},")

    @override
    def check_options(self, declared: DeclaredResource, config: Configuration) -> CheckedOptions:
        option = AgentOptions.EMBEDDING_MODELS
        fields = EmbeddingModelSpec.model_fields
        configure_description(EmbeddingModelSpec, option, declared, config)
        return checked_options(option, declared.name, fields, config)

    @override
    def check_worker(self, declared: DeclaredResource, config: Configuration) -> None:
        spec = configure_description(EmbeddingModelSpec, AgentOptions.EMBEDDING_MODELS, declared, config)
        what = f"the embedding model {declared.name!r}"
        check_ready(what, declared.clazz, spec.model_dump(mode="json", exclude_unset=True))
        if declared.clazz or spec.model.partition(":")[0] == "wordllama":
            # Reading it from files takes long.
            return
        connection = None
        if spec.connection is not None:
            connection = declared.get(spec.connection, ResourceType.CHAT_MODEL_CONNECTION)
        make_model(spec, Secrets(what), connection)

    @override
    def provide(self, declared: DeclaredResource) -> EmbeddingModelResource:
        return EmbeddingModelResource(declared)
