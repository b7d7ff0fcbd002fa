"""All limits of Querator with their units and reasons. Relations between limits are asserted at
import.

Names end in their unit or in `_MAX`/`_MIN` of a count. `…_MAX` is the default limit, `…_CAP` the
highest value that an operator may set. Limits used inside `partition` apply are constants of the
log's format version. Changing one needs a new version, because replicas must decide alike.
"""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS

# Requests (checked at the API).
PAYLOAD_BYTES_MAX = 1 * MIB  # An item is copied whole through every queue and buffer of the node.
PAYLOAD_BYTES_CAP = 8 * MIB
REQUEST_BYTES_MAX = 8 * MIB  # Bounds what one call may hold in memory before it is refused.
REQUEST_BYTES_CAP = 32 * MIB
REQUEST_ITEMS_MAX = 1_000  # Bounds the work of one apply.
REQUEST_ITEMS_CAP = 10_000
REQUEST_LEASES_MAX = 1_000  # As above, for complete, retry, extend.
REQUEST_RANGES_MAX = 10_000  # As above; ranges of sequences in one complete or retry.
NAME_CHARS_MAX = 255  # Queue and namespace; fits every file system and URL.
REFERENCE_CHARS_MAX = 2_000
KIND_CHARS_MAX = 255
ENCODING_CHARS_MAX = 255
KEY_BYTES_MAX = 512
GROUP_BYTES_MAX = 512
DEDUP_KEY_BYTES_MAX = 512
CLIENT_ID_CHARS_MAX = 128
REQUEST_ID_CHARS_MAX = 128
READER_ID_BYTES_MAX = 128
TXN_PRODUCER_CHARS_MAX = 128  # Names what commits batches: a Spark query's id or a user's name.
TXN_ATTEMPT_BYTES = 16  # A UUID: an attempt repeated after a crash is another attempt.
TXN_NUMBER_MAX = (1 << 63) - 1  # Batches and sequences of stages; Spark counts in 64 bits.
TXN_TASKS_MAX = 1 << 31  # Spark counts its partitions in 31 bits.
TXN_CLAIMS_MAX = 10_000  # Stages of one commit, over all partitions: they are in one log entry.
TXN_LIST_MAX = 1_000  # Batches that one list shows, the oldest first.
CONSUMER_ID_CHARS_MAX = 64  # It is part of the request ids of its streams' leases.
PRODUCER_ID_BYTES = 16  # A UUIDv7.
ATTRIBUTES_MAX = 64
ATTRIBUTES_BYTES_MAX = 8 * KIB  # Names and values together.
# Items of one retry that changes attributes: each gets a row of its own. As many as a lease has.
RETRY_ATTRIBUTES_ITEMS_MAX = 1_000
CHECKPOINT_BYTES_MAX = 64 * KIB  # Of one item: it is in each reply that delivers the item.
CHECKPOINTS_MAX = 100  # Of one extend: each gets an attachment and a row of its own.
CHECKPOINTS_BYTES_MAX = 1 * MIB  # Of one extend, together: a log entry has many.
RESULT_BYTES_MAX = 1 * MIB  # Of one item: a reply to a waiting producer has at least one result.
RESULTS_OF_COMPLETE_MAX = 1_000  # Each gets an attachment of its own. As many as a lease has items.
RESULTS_BYTES_MAX = 2 * MIB  # Of one complete, together: a log entry has many.
ERROR_CHARS_MAX = 1_000  # A consumer's text on a retry.
ERRORS_KEPT_MAX = 5
DESCRIPTION_CHARS_MAX = 1_000
PAGE_ITEMS_MAX = 1_000
PAGE_ITEMS_DEFAULT = 100
PAGE_TOKEN_CHARS_MAX = 1_024
REPLY_BYTES_DEFAULT = 3 * MIB  # gRPC clients refuse messages over 4 MiB by default.
REPLY_BYTES_MAX = REQUEST_BYTES_CAP
STREAM_BATCH_ITEMS_DEFAULT = 100
# Named batches of readers: what one call reserves in all partitions of a queue. No payload moves
# then; reads of a batch have their own bounds.
BATCH_ITEMS_DEFAULT = 50_000
BATCH_ITEMS_MAX = 500_000  # About what BATCH_SEGMENTS_MAX full blocks hold.
BATCH_BYTES_DEFAULT = 64 * MIB
BATCH_BYTES_MAX = 1024 * MIB  # A client that repeats a batch reads all of it again.
FOLLOW_UP_QUEUES_MAX = 100  # Of one settle: each queue is looked up, and routed by itself.
STREAM_UNANSWERED_MAX = 256  # Requests of one stream, accepted and not answered.
EXECUTION_STREAM_CALLS_MAX = 1_024  # Calls of one stream, accepted and not answered.
STREAM_UNANSWERED_BYTES_MAX = REQUEST_BYTES_CAP  # Beyond, no frame is read: one more at most.
STREAM_DELIVERIES_BYTES_MAX = 4 * MIB  # Beyond, a slow reader gets no more leases.
STREAM_CREDIT_ITEMS_MAX = 100_000
LEASE_AGE_MS_MAX = 3_650 * DAY_MS  # The oldest leases that a list chooses.
STREAM_LEASES_MAX = 10_000  # Live leases of one stream; it gets no more until it settles some.

# Work that a node has accepted and not answered (beyond: OVERLOADED).
PRODUCES_WAITING_MAX = 16_384
PRODUCE_BYTES_WAITING_MAX = 64 * MIB  # Below what proposals may hold: completes still get in.
PRODUCE_BYTES_HELD_MAX = 128 * MIB  # Including those that wait for a leader, or for a map.
PRODUCES_HELD_MAX = 32_768
SETTLES_WAITING_MAX = 16_384
# Of these, calls that wait for a leader. An election is short, and a partition without a leader
# must not use the memory of the others.
LEADERLESS_BYTES_MAX = 32 * MIB
LEADERLESS_CALLS_MAX = 8_192
LEASES_WAITING_MAX = 65_536  # Parked lease calls and streams.
CONNECTIONS_MAX = 1_000  # Of clients and other nodes; gRPC closes further ones.
# Incomplete messages of all connections. Beyond it, connections without traffic are closed; beyond
# twice as much, others too.
INCOMPLETE_BYTES_MAX = 96 * MIB
RESULT_WAITS_MAX = 16_384  # Calls that wait for results of items.
# Questions that wait at the leaders of partitions; a call has one for each partition of its items.
RESULT_QUESTIONS_MAX = 65_536
EXECUTION_WAITS_MAX = 16_384  # Calls that wait for executions.
EXECUTIONS_AWAITED_MAX = 262_144  # Of all questions of clients and workers at a node's leaders.
EXECUTIONS_AWAITED_QUEUE_MAX = 131_072  # Of these, of one queue: others have room, too.
EVENT_CALLS_MAX = 16_384  # Calls of followers that wait for events; each is of one partition.
EVENT_QUESTIONS_MAX = 65_536  # Questions that wait at the leaders of partitions.
EVENTS_READ_DEFAULT = 1_000
EVENTS_READ_MAX = 2_000
EVENT_RANGES_MAX = 50_000  # Of items, in one reply: about 1 MiB.
OVERLOADED_RETRY_MS = 50
# Lease commands in a row that a partition answers with nothing although it has something ready. It
# is behind, or its counts are wrong. It is asked again after OVERLOADED_RETRY_MS.
LEASES_EMPTY_MAX = 4
# Lease requests to a partition whose outcome is unknown, and which a node repeats to release what
# was granted; leases of older ones lapse.
LOST_LEASE_REQUESTS_MAX = 1_000
# What a lease of chosen items reads in each partition, from the next item on.
LOOK_AHEAD_ITEMS_MAX = 1_000
LOOK_AHEAD_BYTES_MAX = 4 * MIB
LOOK_AHEADS_MAX = 3  # Of one call and partition: others may lease first what it has found.
FORWARD_BYTES_MAX = REQUEST_BYTES_CAP  # Asked of another node by one lease command or caller.
FORWARDS_BYTES_WAITING_MAX = 64 * MIB  # Sent to another node, unanswered; beyond: OVERLOADED.
# One answer of a scan, plus what its last block has beyond that. The event loop and other threads
# wait while it is made.
BROWSE_BYTES = 1 * MIB
BROWSE_ITEMS_MAX = 4_096
BROWSES_MAX = 256  # Per node: each has two answers in memory.
BATCH_READS_MAX = 256  # The same for readers' batches, so that scans do not stop streaming.
SCANS_CONNECTION_MAX = 64  # Of each kind, for one connection: others get some.
SCAN_IDLE_MS_MAX = 2 * MINUTE_MS  # A client that reads nothing for this time loses its slot.
BROWSE_KINDS_MAX = 100
PAYLOAD_CACHE_BYTES = 8 * MIB  # Blocks read last, because they are leased in pieces.
# Blocks of a partition that are set aside because their payload is damaged; each lease command
# names them. With more, this node does not lease from the partition until some are repaired.
ASIDE_BLOCKS_MAX = 256
# Blocks of a partition that a node knows to be damaged; more are found when these are repaired.
DAMAGED_BLOCKS_MAX = 1_024
# Payloads are read in the background to find damage. The pieces are small, because checking a row
# takes some microseconds. A round takes at least an hour, because a node may have few payloads.
SCRUB_BYTES_PER_S = 2 * MIB
SCRUB_PIECE_BYTES = 256 * KIB
SCRUB_PIECE_ROWS = 64
SCRUB_ROUND_MS_MIN = HOUR_MS
# A damaged block is requested from each other replica in turn, one block of the node at a time. If
# none has it intact, this is repeated after a pause that is doubled each time.
GIVE_UP_BLOCKS_MAX = 7  # Of one command: its work is bounded like that of others.
MEND_ANSWER_MS = 5 * SECOND_MS
MEND_PAUSE_MS_MIN = 500
MEND_PAUSE_MS_MAX = 60 * SECOND_MS

# Times.
LEASE_TIMEOUT_MS_MIN = 1 * SECOND_MS
LEASE_TIMEOUT_MS_MAX = 24 * HOUR_MS
LEASE_TIMEOUT_MS_DEFAULT = 30 * SECOND_MS
# Handlers on threads cannot be ended. Those that did not end in time and still run are bounded.
HANDLERS_LEFT_MAX = 100
REQUEST_TIMEOUT_MS_MAX = 15 * MINUTE_MS  # Also the longest wait of a lease call.
SCHEDULE_AHEAD_MS_MAX = 10 * YEAR_MS
SCHEDULE_NOW_MS = 100  # Less than this ahead counts as now.
# A partition that closes stays until its results are over: a day would keep it for a day.
KEEP_RESULT_MS_MIN = 1 * SECOND_MS
KEEP_RESULT_MS_MAX = 1 * HOUR_MS
RETRY_DELAY_MS_MAX = 30 * DAY_MS
RETRY_DELAY_MAX_MS_DEFAULT = 1 * HOUR_MS
RESCHEDULE_ITEMS_MAX = 1_000  # Of one command: its work is bounded like that of others.
PRIORITIZE_ITEMS_MAX = 1_000  # Of one command, for the same reason.
CANCEL_ITEMS_MAX = 1_000  # Of one command, for the same reason.
PURGE_COMMANDS_MAX = 64  # Of one call: the next call continues, long before a deadline ends it.
PURGE_TOKEN_CHARS_MAX = 32_768  # Three numbers for each of PARTITIONS_MAX partitions.
PRIORITY_MIN = -(1 << 31)  # A signed number of 32 bits.
PRIORITY_MAX = (1 << 31) - 1
PRIORITY_AGING_MS_MIN = 1 * SECOND_MS
PRIORITY_AGING_MS_MAX = 30 * DAY_MS
SCHEDULE_BUCKETS_MAX = 1_000  # Of one count of scheduled items by time.
SCHEDULE_INTERVAL_MS_MIN = 1 * SECOND_MS
SCHEDULE_INTERVAL_MS_MAX = 10 * YEAR_MS
SCHEDULE_INTERVAL_MS_DEFAULT = 1 * MINUTE_MS
# Recurrences: items that a queue produces by itself. All are in its first partition.
RECURRENCES_MAX = 1_000  # Per queue: a repair of time changes all in one command.
RECURRENCE_ITEM_BYTES_MAX = 64 * KIB  # An item with its time and number: the template is in a row.
CRON_CHARS_MAX = 256
TIME_ZONE_CHARS_MAX = 64
RECURRENCE_INTERVAL_MS_MIN = 1 * SECOND_MS
RECURRENCE_INTERVAL_MS_MAX = 366 * DAY_MS
RECURRENCE_JITTER_MS_MAX = 1 * DAY_MS
MISSED_AFTER_MS_MIN = 1 * SECOND_MS
MISSED_AFTER_MS_MAX = 7 * DAY_MS
MISSED_AFTER_MS_DEFAULT = 1 * MINUTE_MS  # Longer than elections and restarts take.
MISSED_RUNS_MAX = 1_000  # After one gap.
MISSED_RUNS_DEFAULT = 100
MISSED_COUNTED_MAX = 1_000  # Of each gap: finding one takes some microseconds.
FIRE_ITEMS_MAX = 100  # Of one command; more are in further ones.
FIRE_BYTES_MAX = 1 * MIB
RECURRENCE_SPANS_MAX = 8  # Spans without missed runs that a recurrence remembers.
RECURRENCE_ERROR_CHARS_MAX = 200
RECURRENCE_AGAIN_MS = 1 * MINUTE_MS  # Until a due time that was not found is looked for again.
RECURRENCE_TIMES_MAX = 100  # Of one list of coming due times.
RECURRENCE_TIMES_DEFAULT = 10
# Executions of durable functions (`model.executions`).
EXECUTION_ID_BYTES_MAX = 255
EXECUTION_NAME_BYTES_MAX = 255  # Functions, steps, signals, places in the code.
EXECUTION_VERSION_BYTES_MAX = 64  # Of a function: a hash, or what its author says.
EXECUTION_SECRET_BYTES = 16  # Not to be guessed; promises and random numbers follow from it.
START_REQUEST_BYTES = 16  # Of the hash of the id of a request that starts an execution.
EXECUTION_REWINDS_MAX = 32  # Of one journal, whose removed records are in the row.
START_REQUESTS_MAX = 16  # Of one execution, remembered: a repeat of an older one begins a run.
EXECUTION_PATH_BYTES_MAX = 255  # More than 100 tasks and calls, each within the one before it.
EXECUTION_VALUE_BYTES_MAX = PAYLOAD_BYTES_MAX  # Arguments, a result, a signal, a promise.
EXECUTION_VALUE_BYTES_CAP = PAYLOAD_BYTES_CAP
MESSAGE_ID_BYTES_MAX = 128
PROMISE_MAC_BYTES = 16
JOURNAL_RECORDS_MAX = 10_000  # Of one run: a replay takes some microseconds for each.
JOURNAL_RECORDS_CAP = 50_000
JOURNAL_BYTES_MAX = 16 * MIB  # A worker without the journal reads all of it.
JOURNAL_BYTES_CAP = 64 * MIB
JOURNAL_RECORDS_KEPT = 100  # The last of these are for undoing, as many more for the end.
JOURNAL_INLINE_BYTES_MAX = 1 * KIB  # Larger payloads are attachments, stored once.
RECORD_NOTES_MAX = 256  # Of one Record: it is in one log entry with others.
RECORD_FOLDS_MAX = 256
RECORD_TIMERS_MAX = 256
RECORD_CHILDREN_MAX = 256  # Children that one Record starts, and that it cancels.
RECORD_BYTES_MAX = REQUEST_BYTES_MAX
RECORD_ITEMS_MAX = REQUEST_ITEMS_MAX  # Items that one Record produces, for all queues together.
# Records of a worker that are sent and not answered, of one execution: the partition remembers as
# many answers.
RECORDS_UNANSWERED_MAX = 8
SIGNALS_UNREAD_MAX = 1_000  # Of one execution: a parked one may get no more while it waits.
SIGNALS_REMEMBERED_MAX = 10_000  # Of one execution: message ids whose repeats are recognised.
EXECUTION_TIMERS_MAX = 2_000  # Of one execution, not fired.
EXECUTION_PROMISES_MAX = 10_000  # Of one run, resolved: which value won is remembered to its end.
EXECUTION_CHILDREN_MAX = 1_000  # Open children of one execution: their results come at any time.
EXECUTION_CHILDREN_DEEP_MAX = 32  # Children of children.
EXECUTION_CHILD_WAITS_MAX = 16  # Operations of a parent that wait for the same child.
EXECUTION_WAKES_MAX = 1_000  # What a parked execution waits for; each is looked up.
EXECUTION_REFUSALS_MAX = 32  # Versions of one execution that do not fit: the last ones are known.
PINS_LOOKED_MAX = 100  # Pins that one command names: those that wait longest.
WORKER_FUNCTIONS_MAX = 1_000  # That a lease of activations names.
EXECUTION_ITEMS_WAITING_MAX = 100_000  # Items of a partition's executions, not in their queues.
EXECUTION_LAPSES_MAX = 10  # Leases in a row that lapse without a record; then it is STUCK.
EXECUTION_FIRES_MAX = 500  # Timers that one command fires, and children that it cancels.
EXECUTIONS_MAX = 10_000_000  # Per partition, with those that have ended and are kept.
# The code of an execution, in a worker (`querator.durable`).
EXECUTION_TRACEBACK_CHARS_MAX = 4 * KIB  # Its end is recorded: that is where it was raised.
EXECUTION_CALLS_DEEP_MAX = 16  # Durable functions that call each other.
PUBLISHED_KEYS_MAX = 64  # Of one execution: they are in its row.
PUBLISHED_BYTES_MAX = 64 * KIB  # Keys and values of one execution, together.
TURN_CALLBACKS_MAX = 1_000_000  # After one event; a second of a loop around asyncio.sleep(0).
PUT_AWAY_ROUNDS_MAX = 50  # Times that the tasks of an execution are cancelled to end it.
PUT_AWAY_CALLBACKS_MAX = 10_000  # At each of these times.
PUT_AWAY_CALLS_MAX = 1_000  # Durable calls that code makes although all of them raise Evicted.
PUT_AWAY_CALLS_TOLD = 10  # At this many of them, a warning names the place.
STEP_ATTEMPTS_CAP = 1_000_000
STEP_RETRY_HERE_MS_MAX = 1 * SECOND_MS  # A longer delay is recorded, and the execution may park.
ACTIVATION_JOURNAL_BYTES_MAX = 64 * KIB  # Of a journal, beside its activation; others in pages.
EXECUTION_WAIT_IDS_MAX = 1_000  # Executions that one call waits for.
EXECUTION_ROWS_READ_MAX = 1_000  # Of a list of executions, in one partition.
EXECUTION_RETENTION_MS_MIN = 1 * MINUTE_MS
EXECUTION_RETENTION_MS_MAX = 10 * YEAR_MS
EXECUTION_RETENTION_MS_DEFAULT = 7 * DAY_MS
EXPIRE_TIMEOUT_MS_MAX = 10 * YEAR_MS
EXPIRY_GRAIN_MS = 1 * SECOND_MS  # Expiries are rounded up to this.
DEDUP_WINDOW_MS_DEFAULT = 1 * HOUR_MS
DEDUP_WINDOW_MS_MAX = 7 * DAY_MS
PRODUCER_RETENTION_MS = 7 * DAY_MS
# Last batches of producers of transactions. Longer than those of requests: a pipeline may stop over
# a holiday, and then continues with a batch that may be committed.
TXN_PRODUCER_RETENTION_MS = 30 * DAY_MS
# Of a stage that is unprepared and gets no further request. The first task of a batch waits for the
# last one.
STAGE_TIMEOUT_MS = 1 * DAY_MS
COMMIT_WAIT_MS_MAX = 30 * SECOND_MS  # How long a commit without a deadline waits for the decision.
STAGES_ASK_MS = 1 * MINUTE_MS  # While anything is staged, its coordinator is asked about it.
LEASE_OUTCOME_WINDOW_MS = 15 * MINUTE_MS
CLOCK_SKEW_MS_MAX = 500
# How far a leader's wall clock may take state time beyond both the log and the clocks of a
# majority: more than messages are late, less than leases usually last.
STATE_TIME_JUMP_MS_MAX = 10 * SECOND_MS
# The same where no other node has a clock: a machine that was off for a week or two continues
# alone.
LONE_TIME_JUMP_MS_MAX = 14 * DAY_MS
# An idle group with one voter records the time this often, so that the clock of a node that was
# idle for long is not taken for wrong.
LONE_TIME_NOTED_MS = 1 * DAY_MS
LEADER_WAIT_MS_MAX = 10 * SECOND_MS  # How long a call without a deadline waits for a leader.
READER_LOOK_MS_MAX = 1 * SECOND_MS  # A reader's waiting call checks again after this time.
# Locks: kept by the SDK over leases. A holder counts its lease as shorter than the server does, by
# CLOCK_SKEW_MS_MAX and by what its own clock may be slow, so a shorter lease would leave nothing.
LOCK_TIMEOUT_MS_MIN = 2 * SECOND_MS
LOCK_DRIFT_PERCENT = 1  # A client's clock that is slower than this by the leader's is broken.
LOCK_PERMITS_MAX = REQUEST_ITEMS_MAX  # The tokens of a lock are made by one request.
# A call that waits for a lock looks this often whether its tokens are there: a purge removes them.
LOCK_LOOK_MS_MAX = 15 * SECOND_MS
# A question to a leader about results ends after this time, and is asked again. So one whose call
# has ended meanwhile does not stay for long.
RESULT_LOOK_MS_MAX = 5 * SECOND_MS
EXECUTION_LOOK_MS_MAX = 5 * SECOND_MS  # As above, for executions.
PINNED_LOOK_MS = 200  # While others are always ready, pinned executions are looked for as often.
PINNED_WAIT_MS = 50  # A lease that waits longer also waits for pinned executions.
EVENT_LOOK_MS_MAX = 5 * SECOND_MS  # As above, for events.
READER_PARTITION_WAIT_MS = 2 * SECOND_MS  # How long a partition without a leader delays it.
STRAGGLER_WAIT_MS = 200  # How long a lease reply with items waits for further partitions.
DELETE_WAIT_MS_MAX = 5 * SECOND_MS  # How long a deletion waits for nodes that do not answer.
STOP_WAIT_MS_MAX = 5 * SECOND_MS  # How long commands in flight may take when a node stops.
# No Expire this long after becoming leader: clients could not extend before.
LEASE_GRACE_MS = 2 * SECOND_MS

# A change of the number of partitions stops requests with an identity or keys for at most this
# time, and is then undone: about an election and a handover.
ROUTING_CLOSED_MS_MAX = 5 * SECOND_MS
ROUTING_AGAIN_MS = 1 * MINUTE_MS  # Then it is retried: requests wait at most 5 s of 65.
CHANGE_WAIT_MS_MAX = 1 * MINUTE_MS  # How long a caller waits for all partitions to follow a change.

# Queues.
PARTITIONS_MAX = 1_024
NODES_MAX = 50
NODE_PARTITIONS_MAX = 2_000  # Average replicas per node: even an idle one costs some CPU.
ATTEMPTS_MAX = 65_535
ATTEMPTS_DEFAULT = 20  # As the delivery limit of RabbitMQ's quorum queues.
RELEASES_MAX = 100  # This number of releases counts as one attempt, unless it is the last.
# Flows: groups of a fair queue, keys of a keyed one.
GROUP_DEPTH_MAX = 8  # Levels of a group's path: each costs a row when one of its items moves.
GROUP_SETTINGS_MAX = 1_000  # Groups of a queue with a weight or limit: they are in each Configure.
GROUP_WEIGHT_MAX = 1_000
FLOW_LEASED_MAX = 1_000_000  # The highest limit of the leased items of a group, or of a key.
# Breakers: a partition stops its leases when too many outcomes are failures.
BREAKER_PERCENT_DEFAULT = 50
BREAKER_OUTCOMES_DEFAULT = 20
BREAKER_OUTCOMES_MAX = 1_000_000  # More come too late, also in a busy partition.
BREAKER_WINDOW_MS_MIN = 1 * SECOND_MS
BREAKER_WINDOW_MS_MAX = 1 * DAY_MS
BREAKER_WINDOW_MS_DEFAULT = 1 * MINUTE_MS
BREAKER_BUCKETS = 10  # The window moves in tenths: a bounded row.
BREAKER_OPEN_MS_MIN = 1 * SECOND_MS
BREAKER_OPEN_MS_MAX = 1 * DAY_MS
BREAKER_OPEN_MS_DEFAULT = 30 * SECOND_MS
BREAKER_PROBES_DEFAULT = 3
BREAKER_PROBES_MAX = 1_000
# Limits of leases: a token bucket, and a number of items that are leased at a time.
RATE_ITEMS_MAX = 1_000_000  # Tokens of an interval; more is no limit for any partition.
RATE_INTERVAL_MS_MIN = 1 * SECOND_MS
RATE_INTERVAL_MS_MAX = 1 * DAY_MS
RATE_BURST_MAX = 1_000_000
RATE_BURST_MS_DEFAULT = 1 * SECOND_MS  # A busy node may be late by as much, and loses no tokens.
RATE_BURST_MS_MIN = 200  # A bucket holds the tokens of this time, or a short delay would lose some.
RATE_WAKE_MS = (
    20  # Consumers are woken for the tokens of this time: by 50 entries a second at most.
)
LEASE_LIMIT_MAX = 1_000_000
KEY_CHANGES_MAX = 8  # Changes of the partition number that items of keys may wait for at once.

# Partition state machine.
BLOCK_ITEMS_MAX = 256
BLOCK_BYTES_MAX = 256 * KIB  # A larger item is a block of its own.
APPLY_SEGMENTS_MAX = 2_000  # Work of one command; more is done in further entries.
# Segments of damaged blocks that one lease skips: checking each costs a few microseconds.
ASIDE_SEGMENTS_MAX = 4_096
PRODUCERS_MAX = 100_000  # Per partition.
LEASE_TURNS_MAX = 2_048  # Of flows, in one lease or batch: of a larger one, each takes more items.
FLOWS_MAX = 100_000  # Per partition, with items; produces to further ones are refused.
# How far a new producer's creation may be ahead of the partition's time: it is remembered that much
# longer. The limit is generous, because state time may be behind true time: when a leader's wall
# clock steps forward, as after a pause of its virtual machine, state time follows by a tenth of the
# elapsed time.
PRODUCER_AHEAD_MS_MAX = 7 * DAY_MS
# Per partition, in the queue's dedup window: 1,400 items with a key each second for an hour. About
# 1 GB with short keys, 3 GB with the longest.
DEDUP_KEYS_MAX = 5_000_000
DEBOUNCE_MAX_MS_MIN = SECOND_MS
DEBOUNCE_MAX_MS_MAX = 7 * DAY_MS
DEBOUNCE_MAX_MS_DEFAULT = 3_600_000  # A bumped item starts an hour after its first produce.
KEYS_FREED_MAX = 1_000  # Dedup keys of another partition that one command frees.
PRODUCER_OUTCOMES_MAX = 1_024  # Last outcomes kept per producer: more than a stream has unanswered.
ENDED_LEASES_MAX = 100_000  # Per partition; the oldest are dropped first.
# Per partition: results that are kept, and items that will have one. So no complete fails for it.
RESULTS_MAX = 100_000
# The feed of a partition's events: rows (one for each entry), bytes of them, and events of one row.
EVENT_ROWS_MAX = 1_000_000
EVENTS_BYTES_MAX = 256 * MIB
EVENTS_RETENTION_MS_MIN = 1 * MINUTE_MS
EVENTS_RETENTION_MS_MAX = 30 * DAY_MS
EVENTS_OF_ROW_MAX = 512
# A partition that closes stays until its events are as old, so that followers can read them.
EVENTS_CLOSING_MS = 15 * MINUTE_MS
# By one look into the feed, on the event loop: those that a filter leaves out count, too.
EVENTS_SCANNED_MAX = 2_048
EVENT_ROWS_DELETED_MAX = 8  # By each entry that writes one, while there are too many.
STAGES_MAX = 10_000  # Per partition: attempts at tasks of all batches.
STAGED_BYTES_MAX = 4 * GIB  # Per partition, of items that are not visible yet.
TXNS_OPEN_MAX = 1_000  # Per queue, not finished; one producer has one undecided.
TXN_PRODUCERS_MAX = 100_000  # Per queue, remembered by its first partition, and by each other.
MOVE_BATCH_ITEMS_MAX = 500
# Pause before a full or unreachable target is tried again; doubled from MIN to MAX.
MOVE_PAUSE_MS_MIN = 20
MOVE_PAUSE_MS_MAX = 5 * SECOND_MS  # A try is a log entry of a full target, for one item.
READER_OPENS_KEPT = 8  # Per reader: openings whose repeats are recognised, at any time.
READERS_MAX = 100  # Per partition: lists and stats scan all, and each may hold a batch.
BATCH_SEGMENTS_MAX = APPLY_SEGMENTS_MAX  # One command acknowledges a batch and reserves the next.
MOVE_BATCH_BYTES_MAX = 1 * MIB
KEY_BYTES_STORED_MAX = 64  # Length of a storage key.

# Raft and turns.
# Commands of one entry with their attachments, unless one command is larger.
ENTRY_BYTES_MAX = 4 * MIB
ENTRY_COMMANDS_MAX = 4_096
TURN_BYTES_MAX = 16 * MIB
PROPOSALS_WAITING_MAX = 65_536  # Per node; beyond: OVERLOADED.
PROPOSAL_BYTES_WAITING_MAX = 128 * MIB
# Including those that have timed out and whose entries are not applied: a leader may wait long for
# a majority that hears it and cannot write.
PROPOSAL_BYTES_UNAPPLIED_MAX = 256 * MIB
APPEND_BYTES_MAX = 1 * MIB  # Entries of one message to a follower, unless one entry is larger.
REPLICATION_WINDOW_BYTES = 8 * MIB  # Sent to a follower and not acknowledged.
REPLICATION_MESSAGES_MAX = 64
PROPOSAL_TIMEOUT_MS = 10 * SECOND_MS  # Then its outcome is unknown.
LOG_BYTES_KEPT = 256 * MIB  # Applied log kept per node; its groups share it.
LOG_BYTES_KEPT_MIN = 1 * MIB
LOG_PART_BYTES_MAX = 64 * MIB  # What one group keeps of it, and the space of a new data file.
LOG_PART_BYTES_MIN = 256 * KIB  # What it may keep however many are busy: seconds of work.
LOG_CACHE_BYTES = 256 * KIB  # Newest entries a group keeps in memory, plus unapplied ones.
LOG_UNAPPLIED_CACHE_BYTES = 4 * MIB  # As above, including those on disk and not applied.
LOG_ENTRY_OVERHEAD_BYTES = 128  # Counted per entry in the window, plus its bytes.
LOG_TERMS_MAX = 1_024  # Elections in the window: their list is rewritten at each.
PROPOSAL_OVERHEAD_BYTES = 256  # Counted per proposal, plus its attachment.
TURN_ROWS_MAX = 50_000  # Written by one turn; groups that have not applied theirs wait.
APPLY_ENTRIES_TURN_MAX = 256  # Per group: a long tail is applied over many turns.
# Entries that a replica may still have to apply and yet serves soon when it leads: two turns. With
# more it does not become a voter, and leads only if no other replica can.
UNAPPLIED_ENTRIES_MAX = 2 * APPLY_ENTRIES_TURN_MAX
TRUNCATE_ENTRIES_TURN_MAX = 64  # Per group: more than a turn appends, so that the window is kept.
DELETE_ROWS_TURN_MAX = 2_000  # A group is deleted over many turns.

# Between nodes.
# The largest proposal in one entry, and its overhead.
PEER_FRAME_BYTES_MAX = REQUEST_BYTES_CAP + 2 * ENTRY_BYTES_MAX
PEER_SEND_BYTES_MAX = 8 * MIB  # Queued for one node: replication stays within it.
PEER_SEND_BYTES_CAP = 64 * MIB  # Beyond, the connection is closed to save memory.
PEER_RECEIVE_BYTES = 256 * KIB  # Buffer of a connection, while its frames are smaller.
# Sent on one connection: AES-GCM is sound for 24.5 million under one key (RFC 8446, section 5.5).
PEER_TLS_RECORDS_MAX = 1 << 24
PEER_HELLO_BYTES_MAX = 4 * KIB  # Read from an unauthenticated peer.
PEER_DESCRIPTION_BYTES_MAX = 256 * KIB  # The answer to a query: ample for all nodes.
PEER_REFUSAL_CHARS_MAX = 500
PEER_UNPROVEN_MAX = 64  # Unauthenticated connections; beyond, the oldest is closed.
PEER_ACCEPTS_TURN_MAX = 16
PEER_CONNECT_MS_MAX = 1 * SECOND_MS  # For each address of a name.
PEER_RESOLVE_MS_MAX = 2 * SECOND_MS
PEER_HANDSHAKE_MS_MAX = 2 * SECOND_MS
PEER_PING_MS = 200  # A node that has sent nothing for this time sends a ping.
# Time without messages after which other nodes are asked for a leader. Longer on a link with longer
# gaps.
PEER_QUIET_MS = 700
PEER_SILENCE_MS_MAX = 2 * SECOND_MS  # Nothing received: the link is dead.
PEER_RETRY_MS_MIN = 50
PEER_RETRY_MS_MAX = 1 * SECOND_MS
PEER_REFUSAL_LOG_MS = 1 * MINUTE_MS  # One line for the same refusal of the same host.
PEER_REFUSALS_KEPT_MAX = 1_024
NODE_NAME_CHARS_MAX = 253  # The longest DNS name.
STARTS_KEPT_MAX = 32  # Of a node: its last starts, which prove that it has the newest data.
START_MARK_MS = 10 * SECOND_MS  # A copy of a running node is recognised if older than this.
STARTS_MET_MAX = 4 * NODES_MAX  # Nodes whose last start a node remembers, removed ones too.

assert PAYLOAD_BYTES_MAX <= PAYLOAD_BYTES_CAP < REQUEST_BYTES_CAP
assert PAYLOAD_BYTES_MAX < REPLY_BYTES_DEFAULT < 4 * MIB
assert PAYLOAD_BYTES_MAX < REQUEST_BYTES_MAX <= REQUEST_BYTES_CAP
assert REQUEST_ITEMS_MAX <= REQUEST_ITEMS_CAP
assert REQUEST_ITEMS_MAX <= RETRY_ATTRIBUTES_ITEMS_MAX, "a retry of one lease is never too large"
assert CHECKPOINT_BYTES_MAX <= CHECKPOINTS_BYTES_MAX < ENTRY_BYTES_MAX
assert RESULT_BYTES_MAX <= RESULTS_BYTES_MAX < REPLY_BYTES_DEFAULT < ENTRY_BYTES_MAX
assert REQUEST_ITEMS_MAX <= RESULTS_OF_COMPLETE_MAX, "each item of one lease may have a result"
assert RESULT_LOOK_MS_MAX < REQUEST_TIMEOUT_MS_MAX
assert EXECUTION_LOOK_MS_MAX < REQUEST_TIMEOUT_MS_MAX
assert EXECUTIONS_AWAITED_QUEUE_MAX < EXECUTIONS_AWAITED_MAX
assert EVENT_LOOK_MS_MAX < min(REQUEST_TIMEOUT_MS_MAX, EVENTS_CLOSING_MS)
assert EVENTS_READ_DEFAULT <= EVENTS_READ_MAX <= EVENTS_SCANNED_MAX
assert EVENTS_RETENTION_MS_MIN <= EVENTS_CLOSING_MS < EVENTS_RETENTION_MS_MAX
assert PAYLOAD_BYTES_MAX + CHECKPOINT_BYTES_MAX < REPLY_BYTES_DEFAULT
assert RECURRENCE_ITEM_BYTES_MAX < FIRE_BYTES_MAX < ENTRY_BYTES_MAX
assert MISSED_AFTER_MS_MIN < MISSED_AFTER_MS_DEFAULT < MISSED_AFTER_MS_MAX
assert SCHEDULE_NOW_MS < LEASE_TIMEOUT_MS_MIN < LEASE_TIMEOUT_MS_MAX
assert CLOCK_SKEW_MS_MAX < LEASE_TIMEOUT_MS_MIN <= LEASE_GRACE_MS
assert CLOCK_SKEW_MS_MAX < STATE_TIME_JUMP_MS_MAX < LEASE_TIMEOUT_MS_DEFAULT
assert LONE_TIME_NOTED_MS < LONE_TIME_JUMP_MS_MAX
assert BATCH_ITEMS_DEFAULT <= BATCH_ITEMS_MAX <= BATCH_SEGMENTS_MAX * BLOCK_ITEMS_MAX
assert BATCH_BYTES_DEFAULT <= BATCH_BYTES_MAX
assert JOURNAL_RECORDS_KEPT < JOURNAL_RECORDS_MAX <= JOURNAL_RECORDS_CAP
assert EXECUTION_VALUE_BYTES_MAX < JOURNAL_BYTES_MAX <= JOURNAL_BYTES_CAP
assert EXECUTION_VALUE_BYTES_CAP <= RECORD_BYTES_MAX <= REQUEST_BYTES_CAP
assert SIGNALS_UNREAD_MAX <= SIGNALS_REMEMBERED_MAX
assert BREAKER_WINDOW_MS_MIN >= 100 * BREAKER_BUCKETS, "a bucket is long enough to count"
assert 5 * RATE_WAKE_MS <= RATE_BURST_MS_MIN <= RATE_BURST_MS_DEFAULT, (
    "no tokens are lost when a wake is a little late"
)
assert BLOCK_ITEMS_MAX <= 256, "ordinals of a block are one byte"
assert STREAM_UNANSWERED_MAX < PRODUCER_OUTCOMES_MAX
assert PROPOSAL_BYTES_WAITING_MAX < PROPOSAL_BYTES_UNAPPLIED_MAX
assert REQUEST_BYTES_CAP <= PRODUCE_BYTES_WAITING_MAX < PROPOSAL_BYTES_WAITING_MAX
assert 2 * SCANS_CONNECTION_MAX <= min(BROWSES_MAX, BATCH_READS_MAX)
assert REQUEST_BYTES_CAP <= LEADERLESS_BYTES_MAX < PRODUCE_BYTES_WAITING_MAX
assert PRODUCE_BYTES_WAITING_MAX + LEADERLESS_BYTES_MAX < PRODUCE_BYTES_HELD_MAX
assert STRAGGLER_WAIT_MS < LEASE_TIMEOUT_MS_MIN // 2
assert ENTRY_BYTES_MAX <= TURN_BYTES_MAX
assert REQUEST_BYTES_CAP + ENTRY_BYTES_MAX < PEER_FRAME_BYTES_MAX < 1 << 32
assert PEER_SEND_BYTES_MAX + PEER_FRAME_BYTES_MAX <= PEER_SEND_BYTES_CAP
assert 28 * STARTS_KEPT_MAX < PEER_HELLO_BYTES_MAX // 2, "they travel in a hello"
assert 3 * PEER_PING_MS < PEER_QUIET_MS, "two pings may be late"
assert 2 * PEER_QUIET_MS < PEER_SILENCE_MS_MAX
