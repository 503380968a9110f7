"""A file system of fsspec's, flaky://, on a local disk, that fails now and then, and sometimes after half of the work.

$FLAKY_SHARE is the share of acts that fail. As a config file it is tiny_run.py, whose run then knows flaky:// and looks
at its workdir all the time, for it is short.
"""

import os
import random
import sys
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem
from tiny_run import get_config as get_config

from rose_jax.runtime.mirror import mirror


class FlakyFileSystem(LocalFileSystem):
    protocol = "flaky"
    rng = random.Random(0)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("flaky://"))

    def _may_fail(self):
        if self.rng.random() < float(os.environ.get("FLAKY_SHARE", "0.2")):
            raise ConnectionError("the store does not answer")

    def ls(self, path, **rest):
        self._may_fail()
        return super().ls(path, **rest)

    def cat_file(self, path, *args, **rest):
        self._may_fail()
        return super().cat_file(path, *args, **rest)

    def get_file(self, source, target, **rest):
        self._may_fail()
        return super().get_file(source, target, **rest)

    def put_file(self, source, target, **rest):
        try:
            self._may_fail()
        except ConnectionError:  # half of it is there
            whole = Path(source).read_bytes()
            Path(self._strip_protocol(target)).write_bytes(whole[: len(whole) // 2])
            raise
        return super().put_file(source, target, **rest)

    def pipe_file(self, path, value, **rest):
        try:
            self._may_fail()
        except ConnectionError:
            Path(self._strip_protocol(path)).write_bytes(value[: len(value) // 2])
            raise
        return super().pipe_file(path, value, **rest)


if sys.argv[0].endswith("main.py"):
    mirror.LOOK_SECONDS = 0.2
fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
