"""Why something was done or left undone: one enum, used as log field, metric label, audit line and message text."""

from enum import StrEnum


class Reason(StrEnum):
    """One reason. The comment beside each member is the sentence that the reference page shows."""

    # Decisions (the service).
    POLICY_MATCHED = "policy_matched"  # a policy matched and everything it asks for holds: its steps are carried out
    NOTIFY_ONLY = "notify_only"  # the policy only tells
    OBSERVE_MODE = (
        "observe_mode"  # the policy may not stop a living job yet: the message says what would have been done
    )
    POLICY_OFF = "policy_off"  # the policy that matched is switched off
    NO_POLICY = "no_policy"  # no policy matches this alert
    NO_TARGET = "no_target"  # the alert names no job of ours
    AMBIGUOUS_TARGET = "ambiguous_target"  # more than one job fits the alert: none is touched
    OTHER_PROCESS_HOLDS_MEMORY = "other_process_holds_memory"  # other processes hold more of the card than the job
    CONDITION_NOT_MET = "condition_not_met"  # trainer, labels, age or ranks of the job do not fit the policy
    STALE_DUPLICATE = "stale_duplicate"  # a re-send of an episode that is over
    REPEAT = "repeat"  # the same episode again: counted, nothing new decided
    RESOLVED = "resolved"  # the alert is over
    NO_SECOND_SIGN = "no_second_sign"  # the card is full but nothing says that it is going wrong: asked again later
    UNCONFIRMED = "unconfirmed"  # no fresh measurement confirms the alert: no action
    JOINED = "joined"  # a remediation of this job is open: the alert joins it
    COOLDOWN = "cooldown"  # a remediation of this job ended less than its cooldown ago
    SAVED_RECENTLY = "saved_recently"  # this policy saved the job within its save interval
    JOB_BUDGET_SPENT = "job_budget_spent"  # the job had all the replacements that it may have in 24 h
    HOURLY_BUDGET_SPENT = "hourly_budget_spent"  # the service took all the actions that it may take in an hour
    FLEET_SHARE_SPENT = "fleet_share_spent"  # too large a share of the running jobs is being acted on
    BREAKER_OPEN = "breaker_open"  # the breaker is open: only a person closes it
    ON_HOLD = "on_hold"  # a person holds the job: nothing automatic until it is released
    OPTED_OUT = "opted_out"  # the job carries the label remediation=off
    JOB_ENDED = "job_ended"  # the job had ended
    JOB_LOST = "job_lost"  # the job's agent has missed three heartbeats
    MULTI_NODE = "multi_node"  # the job spans several nodes: it can be saved, not stopped or adjusted
    CLOCK_SKEW = "clock_skew"  # the host's clock is more than 60 s off: conditions on time are unknown
    NO_RUNG_LEFT = "no_rung_left"  # every remedy of the ladder was tried, or can't be: a person must decide
    STEPS_NOT_DUE = "steps_not_due"  # the job loads, caches, evaluates, samples or saves: no step is due
    STORE_LOW_ON_SPACE = "store_low_on_space"  # the service's disk is full: destructive steps are refused
    MANUAL = "manual"  # a person asked for it
    TARGET_BROKEN = "target_broken"  # a message target refuses what is sent to it: a person must change something

    # Answers of an agent, and ends of a remediation.
    WRONG_GENERATION = "wrong_generation"  # the order was for another generation of the job
    EXPIRED = "expired"  # the order was not begun in time
    WITHDRAWN = "withdrawn"  # the service took the order back before it was begun
    SERVICE_AWAY = "service_away"  # the service could not be asked for the go-ahead in time
    NO_RESUME_RECIPE = "no_resume_recipe"  # nothing proves that the job can go on from a checkpoint
    CANNOT_RESUME = "cannot_resume"  # the trainer can't go on from this state with these settings
    NO_SAVE_CHANNEL = "no_save_channel"  # the trainer can't be told from outside to save
    STARTED_ELSEWHERE = "started_elsewhere"  # a GUI, a notebook or a person started it: only they can start it again
    CONFIG_NOT_FOUND = "config_not_found"  # no config file that rules the knob was found
    CONFIG_MALFORMED = "config_malformed"  # the config can't be read
    CONFIG_CHANGED = "config_changed"  # the config was edited after the job had read it
    CONFIG_NOT_WRITABLE = "config_not_writable"  # no new file can be written beside the config
    KNOB_NOT_FOUND = "knob_not_found"  # the config does not set the knob
    KNOB_HAS_TWO_SOURCES = "knob_has_two_sources"  # two places set the knob, and which one counts can't be told
    KNOB_NOT_CHANGEABLE = "knob_not_changeable"  # the knob's value is no plain number or word
    AT_MINIMUM = "at_minimum"  # the knob can't go lower
    EFFECTIVE_BATCH_WOULD_CHANGE = "effective_batch_would_change"  # the policy does not allow another effective batch
    NO_DISK_SPACE = "no_disk_space"  # no room for the checkpoint or the new config
    COMMAND_IS_A_SCRIPT = "command_is_a_script"  # the command runs more than one trainer: it can't be launched again
    NO_STEP_BOUNDARY = "no_step_boundary"  # no optimizer step ended in time: the request was withdrawn
    OUTPUT_NOT_WRITABLE = "output_not_writable"  # no state can be written where the trainer writes its states
    SCRIPT_NOT_FOUND = "script_not_found"  # the trainer's script is not where the command names it any more
    SAVE_FAILED = "save_failed"  # the trainer said that it could not save
    SAVE_INCOMPLETE = "save_incomplete"  # what the receipt names is not there, or not whole
    STILL_ALIVE = "still_alive"  # a process of the job is still alive: never called stopped
    GPU_BUSY = "gpu_busy"  # the card did not become free before the launch
    LAUNCH_FAILED = "launch_failed"  # the new generation could not be started
    NOT_RESUMED = "not_resumed"  # the new generation did not go on from the saved step
    KEEPER_LOST = "keeper_lost"  # the keeper died: training goes on, nothing can be launched
    AGENT_RESTARTED = "agent_restarted"  # the agent was started again and what it had begun can't be told
    HOST_REBOOTED = "host_rebooted"  # the host was started again
    USER_STOP = "user_stop"  # a person stopped the job
    SUPERSEDED = "superseded"  # another order or a person's act took its place
    COMMAND_FAILED = "command_failed"  # the command of a run_command step failed or ran out of time
    ORDER_OPEN = "order_open"  # another order of this job is open

    # Outcomes.
    RECOVERED = "recovered"  # the new generation trains on and the alert's condition no longer holds
    STILL_FULL = "still_full"  # it trains on, but the condition still holds
    DIED_AGAIN = "died_again"  # the new generation died
    DIED_OF_OOM_AGAIN = "died_of_oom_again"  # the new generation died of out-of-memory: no way back
    DIED_OF_HOST_OOM_AGAIN = "died_of_host_oom_again"  # the new generation died of host memory again: no way back
    LOSS_NOT_FINITE = "loss_not_finite"  # the new generation's loss is NaN: what it writes is worth nothing
    NO_STEP = "no_step"  # the new generation made no step by the deadline
    NO_DATA = "no_data"  # nothing fresh could be measured
    SAVED = "saved"  # the checkpoint is written
    STOPPED = "stopped"  # the job is stopped, and nothing of it is alive
    COMMAND_DONE = "command_done"  # the command ended with 0
    UNCERTAIN = "uncertain"  # it can't be told whether it was done: a person must look
