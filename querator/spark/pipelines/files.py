"""Files wherever Spark can reach them, by Hadoop's file systems: what is small is read whole."""

from typing import Any, Final

ANY_AGE: Final = ("maxFileAge", "36500d")
"""For streams of files: otherwise Spark leaves out, without a word, what is a week older than the
newest file that it has read, as files are that were moved there.
"""


class Files:
    """Of one session; paths are as Spark takes them."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._settings = spark._jsparkSession.sessionState().newHadoopConf()

    def found(self, pattern: str) -> bool:
        """Whether there is anything that the path, which may have `*`, means."""
        system, path = self._at(pattern)
        return bool(system.globStatus(path))

    def exists(self, path: str) -> bool:
        system, at = self._at(path)
        return bool(system.exists(at))

    def names(self, directory: str) -> list[str]:
        """Of what is in a directory; none when it is not there."""
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
