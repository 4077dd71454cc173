"""Mutations of ``models``: its protection against repeated payments, leaks and injected instructions."""

from tests.mutations.patches.patch import Room

patch = Room("models")

patch(
    "wait-without-a-limit",
    "setup.failures:failed_attempt",
    "or retry_after <= limit:",
    "or True:",
    "A request waits for whatever a service asks.",
)
patch(
    "whole-agent-waits-without-a-limit",
    "engine.model_calls:policy_of",
    "(*policy.non_retryable, too_long)",
    "policy.non_retryable",
    "A whole agent waits for whatever a provider asks.",
)
patch(
    "rejected-request-sent-again",
    "engine.model_calls:policy_of",
    "if policy.retry_on is None:",
    "if False:",
    "A policy of the author sends again what the provider rejected.",
)
patch(
    "slowest-model-decides",
    "engine.model_calls:_fallbacks_error",
    "wait = min(",
    "wait = max(",
    "Of several models, the one that asks to wait longest decides.",
)
patch(
    "strict-tool-called-after-a-crash",
    "engine.tool_calls:_step_settings",
    "elif idempotent is False:",
    "elif False:",
    "A tool of a whole agent that must not be repeated is called again after a crash.",
)
patch(
    "name-taken-ends-the-run",
    "engine.free_names:_free_name",
    "if name not in reserved_names and not _gives_output(name):",
    "if True:",
    "A tool of a server takes the place of another tool of its name.",
)
patch(
    "data-as-system-message",
    "chat.messages.converting:_convert_chat_message",
    "if is_data(message):",
    "if False:",
    "A record of the class ChatMessage speaks as the system.",
)
patch(
    "data-as-answer",
    "chat.messages.converting:own_response",
    "if any(map(is_data, (response, *response.parts))):",
    "if False:",
    "A record forges what the model said earlier.",
)
patch(
    "data-as-tool-result",
    "chat.messages.converting:_convert_part",
    "if of_data or any(map(is_data, files)):",
    "if False:",
    "A record forges the result of a tool.",
)
patch(
    "mapping-as-message",
    "chat.messages.converting:_convert_message",
    "if isinstance(message, Mapping):",
    "if isinstance(message, Mapping) and 'role' in message:\n"
    "    return _chat_message(ChatMessage(role=message['role'], content=message['content']), now)\n"
    "if isinstance(message, Mapping):",
    "A mapping from a record is a message, with its role.",
)
patch(
    "data-says-how-to-download",
    "chat.messages.converting:own_content",
    "safe_content = replace(content, force_download=False, vendor_metadata=None)",
    "safe_content = replace(content)",
    "A record lets the worker download from its own network.",
)
patch(
    "timed-out-tool-repeated",
    "tools.functions:FunctionTool._call_recorded",
    "retry=_IF_TIMED_OUT if self._tool.is_repeatable else None,",
    "retry=_IF_TIMED_OUT,",
    "A tool that took too long is called again, although it may have taken effect.",
)
patch(
    "timed-out-call-of-server-repeated",
    "mcp.calls:MCPServerCalls.call_tool",
    "repeatable = self._spec.is_idempotent(tool) or await self._requests.is_repeatable(tool)",
    "repeatable = True",
    "A call whose server was lost in the middle is made again.",
)
patch(
    "key-changed-by-person",
    "tools.functions:FunctionTool._call_recorded",
    "{IDEMPOTENCY_KEY: key} if repeats_call else {}",
    "{}",
    "A call that a person lets repeat has another idempotency key.",
)
patch(
    "key-not-sent-to-server",
    "mcp.calls:MCPServerCalls.ask_tool",
    "metadata={IDEMPOTENCY_KEY: idempotency_key}",
    "metadata={}",
    "A server gets no idempotency key.",
)
patch(
    "unknown-outcome-told-to-model",
    "tools.calls:resolve_outcome",
    "if policy.on_unknown is OnUnknownOutcome.FAIL:",
    "if False:",
    "A model hears of a call with an unknown outcome, and makes another one.",
)
patch(
    "answer-not-redacted",
    "chat.requests:ModelRequests.send",
    "without_secrets = redaction.hidden(record, known_only=True)",
    "without_secrets = record",
    "A service that repeats the key shows it to the journal and to the model.",
)
patch(
    "answer-of-server-not-redacted",
    "mcp.calls:MCPServerCalls.run_recorded",
    "return redaction.hidden(await function(*step_arguments, **named), known_only=True)",
    "return await function(*step_arguments, **named)",
    "A server that shows its environment shows it to the model.",
)
patch(
    "answer-without-limit",
    "setup.bodies:_Counter._check_part",
    "if self._bytes > self._limit:",
    "if False:",
    "A decompressed answer has any size.",
)
patch(
    "retry-after-ignored",
    "setup.failures:retry_after_of",
    'return requested_pause(lowercase_headers.get("retry-after"))',
    "return None",
    "A service that asks to be left alone is not.",
)
patch(
    "status-not-repeated",
    "setup.failures:may_succeed_again",
    "return status in _AGAIN_STATUS or (status >= 500 and status != _NOT_IMPLEMENTED)",
    "return status == 429",
    "An overloaded service fails the request at once.",
)
patch(
    "odd-answer-recorded",
    "setup.model_failures:recordable_text",
    "text = _encode(answer)",
    "return json.dumps(answer)",
    "An answer that cannot be sent again is part of the conversation.",
)
patch(
    "refusal-is-answer",
    "setup.model_failures:refusal_in",
    "if response.finish_reason != _REFUSED:",
    "if True:",
    "A refusal passes for an answer.",
)
patch(
    "absurd-usage",
    "chat.requests:_token_count",
    "if 0 <= number <= _MOST_TOKENS:",
    "if True:",
    "One absurd number of tokens fails the job in the metrics.",
)
patch(
    "large-part-takes-history",
    "chat.messages.shortening:_cut_part",
    "if bytes_of(part) <= most:",
    "if True:",
    "One large message removes the earlier history of a key.",
)
patch(
    "odd-vectors",
    "retrieval.embedding:EmbeddingModelResource._check_vectors",
    "if not np.isfinite(matrix).all():",
    "if False:",
    "A vector that is infinite in float32 is stored.",
)
