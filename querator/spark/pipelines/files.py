"""Files wherever Spark can reach them, through Hadoop's file systems. Small files are read
whole.
"""

from collections.abc import Callable
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from querator.spark.pipelines.checkpoints import OFFSETS
from querator.spark.pipelines.file_systems import missing_file_system, scheme_of
from querator.spark.pipelines.formats import HEAD_BYTES, is_hidden
from querator.spark.pipelines.settings import SettingsError

ANY_AGE: Final = ("maxFileAge", "36500d")
"""Option for streams of files. By default Spark silently skips files that are a week older than the
newest file it has read, such as files that were moved there.
"""


class Files:
    """Files of one session; paths are as Spark takes them."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm
        self._settings = spark._jsparkSession.sessionState().newHadoopConf()

    def check_reach(self, **paths: str) -> None:
        """Checks that Spark has the file systems of the paths, by setting; an empty path is none.
        Raises SettingsError.
        """
        hadoop = self._jvm.org.apache.hadoop
        for name, path in paths.items():
            scheme = scheme_of(path)
            if not scheme:
                continue
            try:
                hadoop.fs.FileSystem.getFileSystemClass(scheme, self._settings)
            except Py4JJavaError as error:
                version = str(hadoop.util.VersionInfo.getVersion())
                raise SettingsError(missing_file_system(name, path, version)) from error

    def found(self, pattern: str) -> bool:
        """Whether the path, which may have `*`, matches anything."""
        system, path = self._at(pattern)
        return bool(system.globStatus(path))

    def is_file(self, path: str) -> bool:
        """Whether the path, taken literally, is one file."""
        system, at = self._at(path)
        return bool(system.exists(at) and system.getFileStatus(at).isFile())

    def head(self, pattern: str) -> tuple[str, bytes] | None:
        """Name and first bytes of the first file at the path, which may be a directory or have
        `*`; None if there is no file, or only in directories below.
        """
        system, path = self._at(pattern)
        for each in system.globStatus(path) or ():
            files = system.listStatus(each.getPath()) if each.isDirectory() else [each]
            for file in files:
                name = str(file.getPath().getName())
                if file.isFile() and not is_hidden(name):
                    return name, self._head(system, file.getPath())
        return None

    def _head(self, system: Any, path: Any) -> bytes:
        stream = system.open(path)
        try:
            return bytes(stream.readNBytes(HEAD_BYTES))
        finally:
            stream.close()

    def exists(self, path: str) -> bool:
        system, at = self._at(path)
        return bool(system.exists(at))

    def names(self, directory: str) -> list[str]:
        """Names in a directory; none if it does not exist."""
        system, at = self._at(directory)
        if not system.exists(at):
            return []
        return [each.getPath().getName() for each in system.listStatus(at)]

    def offsets(self, checkpoint: str) -> tuple[list[str], Callable[[str], str]]:
        """For `check_reader`: the names of the offset files of a checkpoint, and what reads one."""
        home = f"{checkpoint.rstrip('/')}/{OFFSETS}"
        return self.names(home), lambda name: self.read(f"{home}/{name}")

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
