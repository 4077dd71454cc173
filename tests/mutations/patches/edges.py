"""Mutations of the execution of actions, and at the edges of a job: changed code, deployments, threads."""

from tests.mutations.patches.patch import Room

patch = Room("runtime")

patch(
    "deployment-as-data",
    "execution.retry:is_of_deployment",
    "if isinstance(current_error, DEPLOYMENT_ERRORS):",
    "if False:",
    "A worker that lacks a key or a module sends all records into dead letters.",
)
patch(
    "deployment-in-group",
    "execution.retry:is_of_deployment",
    "errors += current_error.exceptions",
    "pass",
    "An error of the deployment in a group counts as one of the record.",
)
patch(
    "delayed-unchecked",
    "operator.services.delayed:Delays.restored",
    "self.unchecked.extend(delaying)",
    "pass",
    "A delayed event that no action takes fails the job when its time has come.",
)
patch(
    "waits-of-other-actions",
    "execution.failures:check_suspended",
    "recorded | {wait.step for wait in suspension.waits}",
    "set()",
    "A run waits in an action that the agent lacks, and nobody notes it.",
)
patch(
    "unreadable-begins",
    "execution.run:Run.begin",
    "raise record.error",
    "pass",
    "An input whose class is gone comes to actions as it lies in state.",
)
patch(
    "abandoned-thread-counts",
    "concurrency.threads:LoopThreads.abandon",
    "self._abandoned.add(call)",
    "pass",
    "Threads that hang take the places of those that healthy keys need.",
)
patch(
    "replaced-thread-stays",
    "concurrency.threads:LoopThreads._work",
    "if replaced and self._count - len(self._abandoned) > self._size:",
    "if False:",
    "Each call that hung for a while leaves a thread behind.",
)
patch(
    "own-cancellation-as-the-end",
    "concurrency.bridge:cancelled_from_outside",
    "return task is None or task.cancelling() > own_cancellations.get()",
    "return True",
    "A durable function that raises CancelledError itself comes to no outcome.",
)
patch(
    "change-unseen",
    "state.memory:MutableRead.is_lost",
    "return self.tree.codec.encode(self.value) != self.encoded",
    "return False",
    "A value of memory that was changed and not written is lost without a word.",
)
patch(
    "retyped-field-unchecked",
    "serde.changed:_converted",
    "to_check = fields.keys() - stored.unchanged_fields(cls)",
    "to_check = set()",
    "A field of a stored dataclass keeps a value of its former type.",
)
patch(
    "renamed-field-dropped",
    "serde.changed:_check_renamed",
    "if dropped and new:",
    "if False:",
    "A stored field is dropped, and the one that replaced it gets its default.",
)
patch(
    "slots-unawaited",
    "flink.launch.standalone:StandaloneCluster._wait_until_ready",
    "status.slots >= taskmanagers * slots",
    "True",
    "A cluster is said to take jobs before its slots are there.",
)
patch(
    "long-names-of-logs",
    "flink.launch.standalone:StandaloneCluster._rocksdb_directory",
    'return directory / ("x" * missing) if missing > 0 else directory',
    "return directory",
    "RocksDB cannot restore at another parallelism if the directory has a path of 25 to 57 characters.",
)
patch(
    "lost-job-as-java",
    "flink.clusters.run:_Following._lost_job_error",
    'if not (error.found or "").startswith("404"):',
    "if True:",
    "A job that a restarted JobManager does not know ends in forty frames of Java.",
)
patch(
    "start-forgets-slots",
    "flink.launch.standalone:StandaloneCluster._start_arguments",
    'slots or previous_arguments.get("slots") or DEFAULT_SLOTS',
    "slots or DEFAULT_SLOTS",
    "A cluster that lost its JobManager starts with other slots than it was given.",
)
patch(
    "two-starts",
    "flink.launch.standalone:StandaloneCluster._lock_start",
    "fcntl.flock(file, fcntl.LOCK_EX)",
    "pass",
    "Two commands at once start two JobManagers in one directory.",
)
patch(
    "replay-counts",
    "execution.sub_agents.executor:SubAgentExecutor._replay_again",
    "step.retry_state = failures",
    "pass",
    "A replay that fails uses up an attempt of a sub-agent's action.",
)
patch(
    "pause-unwaited",
    "execution.sub_agents.executor:SubAgentExecutor.pause",
    "await step.shared.pause(step.retry_state.delay)",
    "pass",
    "A sub-agent's action is tried again without a pause.",
)
patch(
    "rest-counts",
    "concurrency.timeouts:ThreadWait.set_at_rest",
    "if at_rest is not self.at_rest:",
    "if False:",
    "The timeout of an action counts the time for which it waits durably.",
)
patch(
    "tasks-count-attempts",
    "execution.calls.pending:ActionTask.__init__",
    "ordinal = delivery.own_tasks",
    "ordinal = len(delivery.tasks)",
    "A replay, which does not execute failed attempts of sub-agents, orders sets of tasks in another way.",
)
patch(
    "scoped-without-parents",
    "execution.sub_agents.sub_agent_run:ScopedTree.hand_over",
    "self._outer.make_parents(full)",
    "pass",
    "What an asked agent wrote has no parents in memory.",
)
patch(
    "action-replay-empty",
    "execution.loop_executor:LoopExecutor.replay",
    "self.durable.replay(step, record)",
    "pass",
    "An action that comes from its record does nothing.",
)
patch(
    "failure-unrecorded",
    "execution.loop_executor:LoopExecutor.end_failed",
    "await durable.end_failed(step, step.run.side_outputs[side_output_count:])",
    "pass",
    "The end of an action that failed is not recorded.",
)
patch(
    "rerun-keeps-records",
    "execution.loop_executor:LoopExecutor.end_failed",
    "await durable.void(step)",
    "pass",
    "An action that runs anew after a mismatch keeps its old records.",
)
patch(
    "pool-memory-lost",
    "execution.loop_executor:LoopExecutor._call_in_thread",
    "run.adopt(step.run)",
    "pass",
    "What an action with a timeout wrote in the pool is lost.",
)
patch(
    "limiter-kept",
    "execution.limits:Slot.end",
    "self._limiter.release()",
    "pass",
    "An action keeps its place in a limit for ever.",
)
patch(
    "end-unrecorded",
    "execution.calls.durable_calls:DurableCalls.end_succeeded",
    "outcomes = await self._record_end(step, record)",
    "outcomes = {}",
    "The end of an action is not recorded.",
)
patch(
    "retry-at-once",
    "execution.loop_executor:LoopExecutor.pause",
    "await step.shared.pause(step.retry_state.delay)",
    "pass",
    "The next attempt does not wait for its pause.",
)
