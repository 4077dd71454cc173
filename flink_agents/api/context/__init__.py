"""``RunnerContext``: everything that an action can do besides returning events."""

from __future__ import annotations

import random
import uuid
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, Unpack, overload

from flink_agents.api.common.metrics import MetricGroup
from flink_agents.api.context.asking import AskMethods
from flink_agents.api.context.durable_steps import DurableMethods
from flink_agents.api.context.servers import FilledPrompt, ServerMethods
from flink_agents.api.context.tasks import TaskMethods
from flink_agents.api.context.waits import WaitMethods
from flink_agents.api.events import Event
from flink_agents.api.models.chat import ChatInput, ChatResult, ConversationOptions
from flink_agents.api.models.history import ConversationHandle
from flink_agents.api.models.retrieval import DEFAULT_K, Collection, LongTermMemory
from flink_agents.api.resources import ResourceType
from flink_agents.api.resources.memory import MemoryObject, MemoryRef
from flink_agents.api.settings.options import Configuration
from flink_agents.api.vector_store import Filter, ScoredDocument

_T = TypeVar("_T")


class RunnerContext(AskMethods, DurableMethods, ServerMethods, TaskMethods, WaitMethods):
    """An action's view of the run that it belongs to.

    A context belongs to one execution of one action. After that execution, or from another thread than the
    one that runs it, or inside a durable function, everything that changes or reads the run (events, memory,
    resources, clients, durable steps, UUIDs and random numbers) raises ``ContextMisuseError``. Constants of
    the run can be read everywhere: names, key, sequence number, timestamp, options, configuration, ``now()``.
    Metrics work everywhere, too.

    To add methods of your own, set ``Agent.context_class`` to a subclass without a constructor.
    """

    __given_to_tools__ = True

    # -- identity -----------------------------------------------------------------

    @property
    @abstractmethod
    def agent_name(self) -> str:
        """Name of the agent. Short-term memory belongs to an agent and a key."""

    @property
    @abstractmethod
    def action_name(self) -> str:
        """Name of the running action."""

    @property
    @abstractmethod
    def key(self) -> Any:
        """The key of the run, with the type that the key selector returned."""

    @property
    @abstractmethod
    def sequence_number(self) -> int:
        """Number of the run within its key, from 0.

        Without gaps, except if inputs come in another order after a restart: a recorded run keeps its number.
        """

    @property
    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the input in milliseconds since the epoch, or None."""

    # -- events -----------------------------------------------------------------------

    @abstractmethod
    def send_event(self, event: Event, delay: float | timedelta | None = None) -> None:
        """Emit ``event``: to the actions that it triggers, or out of the agent.

        With a delay, the event is stored in state when the run is committed, or suspended. At its time it
        starts its own run for the key, after the inputs that wait then. It does so once, and never early.

        Args:
            event: The event. With a delay, its content is serialized at once.
            delay: The time from now on, in seconds or as a timedelta. 0 starts its own run as soon as
                possible. Default: no delay; the event belongs to this run.

        Raises:
            NotAnEventError: ``event`` is not an event.
            UnknownEventError: No action of the agent handles events of that type.
            InvalidDurationError: ``delay`` is negative, not a number, or longer than 365,000 days.
            UnserializableValueError: State cannot hold the event, which has a delay.
            ContextMisuseError: The action has ended; or there is a delay, and another agent called this one.
        """

    @abstractmethod
    def emit_to(self, tag: str, value: Any) -> None:
        """Send ``value`` to the side output ``tag``, when the run is committed, or suspended.

        Raises:
            UnknownSideOutputError: The agent declares no side output of that name (``Agent.side_outputs``).
        """

    # -- memory -----------------------------------------------------------------------

    @property
    @abstractmethod
    def sensory_memory(self) -> MemoryObject:
        """Memory that this run's actions share, and that ends with the run."""

    @property
    @abstractmethod
    def short_term_memory(self) -> MemoryObject:
        """Memory of this key that all its runs share, kept in Flink's state."""

    @abstractmethod
    def resolve(self, ref: MemoryRef) -> Any:
        """Return the value at the place in memory that ``ref`` names.

        Raises:
            MemoryPathError: Nothing is stored there.
        """

    # -- resources and configuration --------------------------------------------------

    @abstractmethod
    def get_resource(self, name: str, resource_type: ResourceType | str) -> Any:
        """Return the resource ``name`` of that type; each subtask creates it once.

        Args:
            name: Name of the resource.
            resource_type: Its kind: a ``ResourceType`` or its value, such as ``"tool"``.

        Raises:
            ResourceNotFoundError: The agent has no resource of that name and type.
            ResourceUnavailableError: No installed provider supports its kind.
        """

    @abstractmethod
    def client(self, name: str) -> Coroutine[Any, Any, Any]:
        """Return an awaitable of the client ``name``; its first use opens it, once per subtask.

        All actions of the subtask share it. It is closed when the attempt of the job ends.

        Raises:
            ResourceNotFoundError: The agent has no client of that name.
            ContextMisuseError: The action is not ``async def``.
        """

    # -- models ------------------------------------------------------------------------

    @overload
    async def chat(
        self,
        model: str,
        messages: ChatInput | FilledPrompt = "",
        *,
        output_type: None = None,
        **options: Unpack[ConversationOptions],
    ) -> ChatResult[str]: ...
    @overload
    async def chat(
        self,
        model: str,
        messages: ChatInput | FilledPrompt = "",
        *,
        output_type: type[_T],
        **options: Unpack[ConversationOptions],
    ) -> ChatResult[_T]: ...
    @overload
    async def chat(
        self,
        model: str,
        messages: ChatInput | FilledPrompt = "",
        *,
        output_type: Any,
        **options: Unpack[ConversationOptions],
    ) -> ChatResult[Any]: ...
    async def chat(
        self,
        model: str,
        messages: ChatInput | FilledPrompt = "",
        *,
        output_type: Any = None,
        **options: Unpack[ConversationOptions],
    ) -> ChatResult[Any]:
        """Hold a conversation with the chat model ``model``; for ``async def`` actions.

        Each request and each tool call is a durable step: after a crash, answered requests are not repeated.

        Args:
            model: Name of the chat model.
            messages: A string from the user, one or several ``ChatMessage``, messages of pydantic-ai, or a
                prompt from ``ctx.prompt``.
            output_type: Type of the answer: a pydantic model, a dataclass, another type that pydantic
                supports, or a ``RowTypeInfo`` of PyFlink with names. Default: ``str``.
            **options: ``tools``, ``output_mode``, ``limits``, ``max_requests``, ``settings``,
                ``instructions``, ``history``, ``variables`` and ``run_tools``, as ``ConversationOptions``
                describes them.

        Raises:
            ResourceNotFoundError: The agent has no chat model of that name, or no such tool.
            ResourceUnavailableError: A package or a secret is missing.
            ModelRequestError: A request failed in all its attempts, and so did the fallbacks; or the messages
                are empty.
            UsageLimitExceededError: The conversation would exceed a usage limit.
            ModelOutputError: The model gave no output of that type.
            ToolError: A tool ended the conversation.
            HistoryError: The history cannot be stored, or another chat of the action uses it.
        """
        resource = self.get_resource(model, ResourceType.CHAT_MODEL)
        filled = await messages if isinstance(messages, FilledPrompt) else messages
        result: ChatResult[Any] = await resource.chat(self, filled, output_type=output_type, **options)
        self._chatted(model, result)
        return result

    def _chatted(self, model: str, result: ChatResult[Any]) -> None:
        """Called after each conversation of :meth:`chat`; the runtime records it in transcripts."""

    def conversation(self, name: str = "default") -> ConversationHandle:
        """Return a history of the key's conversations, to read or clear it.

        Args:
            name: The name in the ``ConversationHistory`` with which ``chat`` was called.
        """
        return ConversationHandle(self.short_term_memory, name)

    # -- retrieval --------------------------------------------------------------------

    async def embed(
        self, model: str, texts: str | Sequence[str], input_type: Literal["query", "document"] = "document"
    ) -> list[list[float]]:
        """Return the vectors of ``texts``, in their order. Requests to the model are recorded.

        Args:
            model: Name of the embedding model.
            texts: The texts, or a single string.
            input_type: ``"document"``, or ``"query"`` for texts with which to search for documents.

        Raises:
            ResourceNotFoundError: The agent has no such embedding model.
        """
        resource = self.get_resource(model, ResourceType.EMBEDDING_MODEL)
        text_list = [texts] if isinstance(texts, str) else list(texts)
        return (await resource.embed(self, text_list, input_type)).lists() if text_list else []

    def vector_store(self, name: str, collection: str | None = None) -> Collection:
        """Return a collection of the vector store ``name``; its requests are durable steps of this action.

        Args:
            name: Name of the vector store.
            collection: Name of the collection. Default: the collection in its description.

        Raises:
            ResourceNotFoundError: The agent has no such vector store.
        """
        return self.get_resource(name, ResourceType.VECTOR_STORE).open_collection(self, collection)

    async def retrieve(
        self,
        store: str,
        query: str,
        k: int = DEFAULT_K,
        filter: Filter | None = None,
        collection: str | None = None,
    ) -> list[ScoredDocument]:
        """Return the ``k`` documents of a vector store that are nearest to ``query``, the nearest first.

        Args:
            store: Name of the vector store.
            query: Text whose embedding the documents are compared with.
            k: Maximum number of documents.
            filter: Condition on their metadata, such as ``{"year": {"$gte": 2020}}``. Default: all documents.
            collection: Name of the collection. Default: the collection in its description.

        Raises:
            ResourceNotFoundError: The agent has no such vector store.
            VectorFilterError: ``filter`` is invalid.
            EmbeddingMismatchError: The documents have embeddings of another model.
        """
        return await self.vector_store(store, collection).query(query, k, filter)

    def long_term_memory(
        self, scope: str = "default", subject: Any = None, name: str = "long_term_memory"
    ) -> LongTermMemory:
        """Return the job's long-term memory of a subject, such as a customer, across runs.

        Args:
            scope: A section of the memory that you choose, such as ``preferences``.
            subject: Whom or what the memory is about: any value that can be a key. Default: the key.
            name: Name of the resource.

        Raises:
            ResourceNotFoundError: The agent has no such long-term memory.
            OptionError: The job has no ``job-identifier``.
        """
        return self.get_resource(name, ResourceType.LONG_TERM_MEMORY).open_memory(self, scope, subject)

    @property
    @abstractmethod
    def config(self) -> Configuration:
        """The options of the job."""

    @property
    @abstractmethod
    def action_config(self) -> Mapping[str, Any]:
        """The ``config`` with which the action was declared; each execution has a copy of it."""

    def get_action_config_value(self, key: str, default: Any = None) -> Any:
        """Return the entry ``key`` of :attr:`action_config`; ``default`` if there is none."""
        return self.action_config.get(key, default)

    # -- time and chance --------------------------------------------------------------

    @abstractmethod
    def now(self) -> datetime:
        """Return the wall-clock time (UTC) at which this run started.

        If a run has recorded something, a replay keeps the time of its first start. If it has recorded
        nothing, a repeated run gets a new time.
        """

    @abstractmethod
    def uuid4(self) -> uuid.UUID:
        """Return a new UUID at each call; a replay of the run gets the same ones."""

    @abstractmethod
    def random(self) -> random.Random:
        """Return a random generator with a seed per action; a replay of the run gets the same numbers.

        Not for secrets: the seed follows from job, key and sequence number.
        """

    # -- metrics ----------------------------------------------------------------------

    @property
    @abstractmethod
    def agent_metric_group(self) -> MetricGroup:
        """Metrics that all actions of the agent share in this subtask."""

    @property
    @abstractmethod
    def action_metric_group(self) -> MetricGroup:
        """Metrics of the running action in this subtask."""
