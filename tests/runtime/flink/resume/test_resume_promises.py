"""What local jobs promise, and the tests that hold them to it: each of those exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.suite.tables import each_case

ROOT = Path(__file__).resolve().parents[4]
FILES = {
    "begin": "tests/runtime/flink/resume/test_resume_begin.py",
    "savepoint": "tests/runtime/flink/resume/test_resume_begin_savepoint.py",
    "folder": "tests/runtime/flink/resume/test_resume_folder.py",
    "inputs": "tests/runtime/flink/resume/test_resume_inputs.py",
    "owners": "tests/runtime/flink/resume/test_resume_owners.py",
    "policy": "tests/runtime/flink/resume/test_resume_policy.py",
    "script": "tests/runtime/flink/resume/test_resume_script.py",
    "signals": "tests/runtime/flink/resume/test_resume_signals.py",
    "stop": "tests/runtime/flink/resume/test_resume_stop.py",
    "local": "tests/minicluster/test_local_resume.py",
    "lists": "tests/minicluster/test_local_lists.py",
    "ends": "tests/minicluster/test_open_ends.py",
    "faults": "tests/local_chaos/test_local_chaos_faults.py",
    "takeover": "tests/cluster/test_takeover.py",
    "examples": "tests/examples/test_examples_run.py",
    "chaos": "tests/local_chaos/command.py",
}

PROMISES: list[tuple[str, str]] = [
    # The folder
    ("a named job has a folder of its own", "folder:test_each_name_has_a_folder_of_its_own"),
    ("an unnamed job does not resume, and says so", "policy:test_which_jobs_resume"),
    ("the warning says which durable steps would run again", "policy:test_a_job_that_does_not_resume_warns"),
    ("the directory can be configured", "policy:test_the_directory_can_be_configured"),
    ("the folder can be moved", "local:test_a_job_with_rocksdb_resumes_in_a_folder_that_was_moved"),
    ("a moved folder, a renamed script", "owners:test_a_folder_that_was_moved_belongs_to_its_script"),
    ("another script with the same job name is named", "owners:test_a_job_run_belongs_to_a_script"),
    ("a script may remove the folder", "savepoint:test_a_script_may_remove_the_directory_of_its_jobs"),
    ("a folder that cannot be written to is an error", "begin:test_a_folder_that_cannot_be_made_is_an_error"),
    # Checkpoints
    ("checkpoints are on by default, and outputs committed", "lists:test_a_list_and_a_topic_of_a_killed"),
    ("a typo fails once", "local:test_one_process_runs_a_job_and_a_failure_before_its_first_checkpoint"),
    # Resuming
    ("a killed job resumes from the newest checkpoint", "local:test_a_killed_job_resumes"),
    ("the lines that the page shows", "local:test_the_page_says_what_happens"),
    ("a finished job begins a new job run, with other ids", "begin:test_a_job_run_that_finished_is_followed"),
    ("auto, never, require", "policy:test_which_jobs_resume"),
    ("not in pytest, IPython and shells", "policy:test_a_test_is_no_script"),
    ("--fresh, in all its forms", "policy:test_a_start_is_fresh_by_option_or_argument"),
    ("--fresh moves the folder aside", "begin:test_fresh_moves_the_folder_aside"),
    ("a death while it moves", "begin:test_a_death_while_the_folder_is_moved_aside"),
    ("any kill at any moment", "chaos:_strike_all"),
    # Several jobs
    ("finished jobs are skipped", "local:test_jobs_that_finished_are_skipped_if_the_script_died"),
    ("jobs added, removed, reordered, failed", "script:test_which_jobs_the_next_start_skips"),
    ("two processes of one script", "script:test_a_job_of_a_start_that_still_runs_is_not_skipped"),
    ("their outputs are stored", "script:test_outputs_of_a_skipped_job_are_those_of_the_start"),
    # Lists and inputs
    ("a list has all outputs once", "lists:test_the_list_of_a_killed_job_has_all_outputs"),
    ("after a damaged checkpoint, too", "lists:test_the_list_of_a_job_whose_newest_checkpoint_is_damaged"),
    ("by what was resumed, not by times", "inputs:test_outputs_that_a_later_start_emits_again_do_not_count"),
    ("a changed list is rejected", "inputs:test_a_changed_list_is_rejected"),
    ("equal lists have equal digests", "inputs:test_equal_lists_are_the_same"),
    ("sources that start from zero are named", "inputs:test_sources_that_begin_anew_are_named"),
    ("restart points at the end of the input", "ends:test_the_last_run_takes_longer_than_checkpoints_may"),
    # Time and transactions
    ("timers, signals, approvals of the meantime", "chaos:answering"),
    ("a downtime beyond the timeout", "faults:test_a_downtime_beyond_the_transaction_timeout_is_rejected"),
    ("clocks that were set", "begin:test_transactions_that_brokers_have_aborted_are_an_error"),
    ("since when transactions are open", "begin:test_since_when_transactions_are_open_is_noted"),
    ("a stop has committed", "begin:test_a_start_that_was_stopped_has_committed_its_outputs"),
    ("processes that stand still", "faults:test_processes_that_stood_still_go_on"),
    # Stopping
    ("a savepoint, and an exit code for each end", "local:test_each_end_is_followed_by_a_start_that_resumes"),
    ("bounded by local.stop-timeout", "stop:test_a_stop_that_takes_too_long_cancels_the_job_and_says_why"),
    ("a stop is never taken for the end", "stop:test_a_stop_is_tried_until_it_succeeds_and_is_never_taken"),
    ("a second signal ends it at once", "signals:test_the_first_signal_stops_and_the_second_ends_at_once"),
    ("a signal while the JVM starts", "signals:test_a_signal_of_the_moment_in_which_the_jvm_starts"),
    ("handlers are put back", "signals:test_handlers_are_those_from_before_after_the_job"),
    ("in the main thread only", "signals:test_no_handler_is_installed_outside_of_the_main_thread"),
    ("had checkpoints, now none", "begin:test_checkpoints_that_are_gone_are_an_error"),
    # One process
    ("a second start is rejected", "local:test_one_process_runs_a_job_and_a_failure"),
    ("the pid is for the message only", "begin:test_one_process_at_a_time"),
    ("an error gives the lock back", "begin:test_an_error_gives_the_lock_back"),
    ("script and JVM end together", "local:test_a_killed_job_resumes"),
    # Damage
    ("order by start and number", "begin:test_the_newest_checkpoint_is_chosen"),
    ("a damaged newest checkpoint", "begin:test_a_damaged_newest_checkpoint_is_passed_over"),
    ("progress that is lost or torn", "begin:test_progress_that_is_lost_is_an_error"),
    ("a record that is gone", "begin:test_a_record_that_is_gone_is_an_error"),
    ("a deleted, another or older journal", "begin:test_the_journal_has_what_was_seen"),
    ("a deleted journal that nobody has seen", "begin:test_a_journal_is_missed_though_nobody_has_seen_it"),
    ("a deleted folder beside a journal", "owners:test_a_folder_that_was_deleted_is_noticed_by_the_journal"),
    ("a full disk", "faults:test_a_full_disk_fails_the_job_and_loses_nothing"),
    # Changes
    ("a lost agent is rejected, a changed plan told", "begin:test_a_job_that_lost_an_agent_does_not_resume"),
    ("another parallelism", "local:test_a_killed_job_resumes_with_another_parallelism"),
    # Beyond the machine
    ("a cluster and back", "takeover:test_a_job_moves_to_a_cluster_and_back"),
    ("a savepoint of another job", "savepoint:test_a_job_run_begins_with_the_savepoint_of_another_job"),
    ("the demo", "examples:test_review_analysis_that_is_killed_resumes"),
]


@each_case(("promise", "test"), PROMISES, ids=[promise for promise, _ in PROMISES])
def test_each_promise_has_a_test(promise: str, test: str) -> None:
    file, _, name = test.partition(":")
    text = (ROOT / FILES[file]).read_text("utf-8")
    assert re.search(rf"^ *(async def|def|)\s*{re.escape(name)}\w*( =|\()", text, re.MULTILINE), test
