"""Locks and semaphores over leases: mutual exclusion of programs on many machines.

A lock is a queue with one token, which is an item that is leased and released, and never completed.
A semaphore is a queue with N tokens. The server needs no rule of its own for them. That an item is
under at most one live lease is the exclusion; the lapse of a lease frees the token of a program
that died; the lease's number is the fencing token.

The holder counts its lease from before its request was sent, and as shorter than the server does
(`token_lease.valid_seconds`). So it stops to be the holder before the server gives the token away,
as long as the clocks of both are right. A clock may be wrong, and a process may be stopped between
a look at its lock and the write that this was for. A store that compares fencing tokens is safe
also then. See docs/patterns/mutex-and-semaphore.md and ADR 53.

    lock        Lock, Semaphore: acquire, blocks, holders
    election    Election: a lock whose holder leads
    rw_lock     RwLock: many readers, or one writer
    block       the block of a lock, which is cancelled when the lock is lost
    holding     Holding: a lock that is held, as programs see it
    token_lease  TokenLease: the leases of a lock; extends them, and reports their loss
    tokens      the queue of a lock: settings, tokens, holders
    calls       calls to the nodes, and tokens that must be given back
    fencing     fencing tokens: numbers that grow from holder to holder
"""
