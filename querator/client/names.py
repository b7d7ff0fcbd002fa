"""The name of a client as an owner of leases, for people."""

import os
import socket

import uuid_utils

from querator.model import limits


class ClientName:
    """The name that the program has given, or one made of the host name, the process id and a
    random part. A client that is used only after a fork gets such a name in each process.
    """

    def __init__(self, given: str | None) -> None:
        self._given = given
        self._made = (0, "")

    def here(self) -> str:
        """The name in this process."""
        if self._given:
            return self._given
        pid = os.getpid()
        if self._made[0] != pid:
            host = socket.gethostname()[: limits.CLIENT_ID_CHARS_MAX // 2]
            # The end of a UUIDv7 is random; its beginning is the time.
            self._made = pid, f"{host}-{pid}-{uuid_utils.uuid7().hex[-12:]}"
        return self._made[1]
