"""PySyncObj, pinned to one version, without its clock and its network. No other package imports it.

Rules of Raft that replace those of the library are in `raft.consensus`.

    engine          the library's class, reduced to terms, states and commit rule
    library         the only import of PySyncObj: without timers, under the caller's clock
    library_log     base class of a log in the form that the library reads
    pinned          check that the installed library is the pinned version
    transport       requests for votes, the only messages that the library sends
"""
