"""PySyncObj, pinned to one version, without its clock and its network. Nothing else imports it."""
