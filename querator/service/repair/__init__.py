"""Damaged blocks: found in the background or by readers, set aside, and replaced from other
replicas. Checksums and the format of attachments are in `storage`.

    damage   damaged blocks of this node: set aside, reported, repaired
    aside    the damaged blocks that leases of this node skip
    scrub    background reads of all payloads
"""
