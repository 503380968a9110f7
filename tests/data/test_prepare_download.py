"""Downloads against a server on this machine: resumed parts, wrong checksums, no server."""

import hashlib
import http.server
import re
import socket
import threading
import time

import pytest

from rose_jax.data.prepare.download import download
from rose_jax.errors import UserError

CONTENT = bytes(range(256)) * 5000
MD5 = hashlib.md5(CONTENT).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    ranges: list[str | None]
    cut = None  # bytes after which the connection closes

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.ranges.append(wanted)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : self.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (_Handler,), {"ranges": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        handler.url = f"http://127.0.0.1:{httpd.server_port}/file.bin"
        yield handler
        httpd.shutdown()
        thread.join()


def test_interrupted_download_continues(tmp_path, server):
    target = tmp_path / "file.bin"
    server.cut = 700_000
    with pytest.raises(UserError, match=r"Could not download .*700000 of 1280000 bytes.* Run again to continue"):
        download(server.url, target, MD5)
    assert not target.exists()
    server.cut = None
    assert download(server.url, target, MD5).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=700000-"]
    assert list(tmp_path.iterdir()) == [target]


def test_part_that_was_whole_is_taken(tmp_path, server):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(server.url, tmp_path / "file.bin", MD5).read_bytes() == CONTENT


def test_wrong_checksum_is_removed(tmp_path, server):
    with pytest.raises(UserError, match=f"md5 {MD5}, expected 0123"):
        download(server.url, tmp_path / "file.bin", "0123")
    assert list(tmp_path.iterdir()) == []


def test_no_server_fails_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(UserError, match=r"Could not download .* --from file.bin"):
        download(f"http://127.0.0.1:{port}/file.bin", tmp_path / "file.bin", MD5)
    assert time.monotonic() - start < 5
