"""The rules of a partition of a queue: a deterministic state machine that has no clock, no
randomness and no I/O of its own. The read functions for other components (queries, facts, batches
of the outbox) are also here. Storage, replication and everything that waits or sends belong
elsewhere.

    adoption              Adopt: takes over what other partitions remember
    apply_context         the context in which one entry is applied
    arrivals              follow-ups that a Move brings: repeats, keys
    breaker               stops leases while consumers fail, and tries single items
    breaker_rows          the breaker in the state row
    browse                scans of items by sequence, in pages, without leases
    checkpoints           SaveCheckpoints: data that a consumer keeps with an item
    dead                  how items die and become ready: expiry and attempts
    dedup                 dedup keys: which items repeat one
    dedup_export          pages of remembered facts for other partitions
    dedup_rows            rows of dedup keys, and how keys are freed
    departed              which moves have arrived, and which groups are gone
    digest                a hash of all tables, to compare replicas
    duplicates            items that replace the waiting one of their dedup key
    ended_leases          the end of leases, and their remembered outcomes
    entry                 the format of log entries: commands and attachments
    execution_arrivals    Arrive: signals, promises, cancellations
    execution_cancels     cancellations of executions and of their children
    execution_children    children: their starts and results
    execution_folds       folds: the result of a call replaces its records
    execution_invariants  a full check of executions
    execution_items       items that executions produce
    execution_machine     the commands of a queue of executions
    execution_published   published values: what a Record changes of them
    execution_queries     reads of executions and their journals
    execution_rewinds     RewindExecution: a run continues from one of its records
    execution_rows        layouts of the rows of executions
    execution_runs        a new run: new arguments, an empty journal
    execution_starts      StartExecution: makes one, begins its next run, or attaches
    execution_time        FireTimers: timers, deadlines, retention
    executions            executions: states, activations, how they wake
    expire                Expire and Activate: lapses, expiry, schedules, forgetting
    extend                Extend: later deadlines of leases
    feed                  the feed of events: what rules note, and how long it is kept
    feed_invariants       a full check of the feed
    feed_queries          reads of events from a position on
    feed_rows             layouts of the rows of events
    flow_choice           which items of which flows a lease or a batch gets
    flow_invariants       a full check of flows
    flow_queries          lists of groups and keys with their counts
    flow_rows             layouts of the rows of flows
    flows                 groups and keys: their counts, limits and turns
    follow_ups            Follow: settles, and produces in the same step
    give_up               GiveUp: drops items with damaged payload
    held_keys             held items: waiting for earlier items of their key
    invariants            a full check of the tables
    item_fields           fields of stored items
    item_times            times of single items, when they change
    item_queries          reads of items by sequence
    key_homes             items of a key that has moved go to its partition
    lease                 Lease: ready items for waiting callers
    lease_queries         lists of live leases
    limit_rows            the limits of leases in the state row
    limits                token bucket of a partition, and its number of leased items
    look_ahead            which of the next items a consumer wants
    machine               the state machine: dispatches the commands of an entry
    masks                 sets of items of a block as integers
    moves                 Move, MoveDone, MoveReturn, MoveElsewhere, ResumeMoves
    named_items           items that a command of an operator names
    named_lease           leases of items by name
    needs                 upper bounds of the disk space of a command
    outbox                batches of moves for the component that sends them
    overlays              what single items got later: loaded, removed
    payloads              payloads of blocks: read and checked
    pinned_leases         LeasePinned: what is pinned, for workers that fit
    pins                  executions that wait for a version that fits
    prioritize            Prioritize: waiting items get another priority
    produce               Produce: stores items as blocks
    producers             producers: sequences and remembered outcomes
    queries               reads for other threads: payload, counts, items
    reader_queries        reads of readers and named batches
    readers               readers and named batches: open, advance, release
    recording             Record: a worker appends to a journal
    recurrence_invariants  a full check of recurrences
    recurrence_queries     reads of recurrences for other threads
    recurrences            recurrences: Remind, Fire, and changes of operators
    redate                RepairTime: state time goes back, and rows are redated
    redrive               Redrive, DropLetters: dead letters back to their queue, or gone
    removals              Purge and Cancel: waiting items are removed
    reply_bytes           what items got later, in the bytes of a reply
    request_places        which items of a keyed request are stored where
    reschedule            Reschedule: scheduled items are moved, run or cancelled
    result_invariants     a full check of the results of items
    result_queries        reads of results of items
    results               Answer: results of items, from the produce to their end
    rows                  layouts of the rows, and the state row
    schedule_queries      reads of scheduled items by due time, and their counts
    segments              segments, their indexes, and state changes of items
    settle                Complete and Retry
    staging               Stage, Prepare, Publish, Discard, DropStages
    staging_invariants    a full check of stages and transactions
    staging_refusals      why a stage refuses items
    staging_rows          layouts of the rows of transactional produce
    states                the table of all transitions of an item
    transactions          Begin, Decide, AbortTxn, Finish
    txn_producers         remembered producers of transactions
    txn_steps             the steps that open transactions need next
"""
