"""Files wherever Spark can reach them, through Hadoop's file systems. Small files are read
whole.
"""

from typing import Any, Final

ANY_AGE: Final = ("maxFileAge", "36500d")
"""Option for streams of files. By default Spark silently skips files that are a week older than the
newest file it has read, such as files that were moved there.
"""


class Files:
    """Files of one session; paths are as Spark takes them."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._settings = spark._jsparkSession.sessionState().newHadoopConf()

    def found(self, pattern: str) -> bool:
        """Whether the path, which may have `*`, matches anything."""
        system, path = self._at(pattern)
        return bool(system.globStatus(path))

    def exists(self, path: str) -> bool:
        system, at = self._at(path)
        return bool(system.exists(at))

    def names(self, directory: str) -> list[str]:
        """Names in a directory; none if it does not exist."""
        system, at = self._at(directory)
        if not system.exists(at):
            return []
        return [each.getPath().getName() for each in system.listStatus(at)]

    def read(self, path: str) -> str:
        system, at = self._at(path)
        stream = system.open(at)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        system, at = self._at(path)
        stream = system.create(at, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._jvm.org.apache.hadoop.fs.Path(path)
        return at.getFileSystem(self._settings), at
