"""Downloads against a small server on this machine: with and without ranges, cut, wrong, absent."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground.data import download, load_source
from commonground.data.download import Published, extract, fetch
from commonground.data.sources import cifar
from commonground.errors import DataError

CONTENT = np.random.default_rng(0).bytes(300_000)


@dataclass
class Server:
    """What the server does, and what it was asked."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    codes: list[int] = field(default_factory=list)  # the next answers are these errors
    asked: list[str | None] = field(default_factory=list)  # each request's Range

    def file(self, content: bytes = CONTENT) -> Published:
        return Published(f"{self.url}/letters.bin", hashlib.md5(content).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.headers.get("Range"))
            if state.codes:
                self.send_error(state.codes.pop(0))
                return
            start = 0
            if state.ranges and (asked := self.headers.get("Range")):
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(state.content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
            else:
                self.send_response(200)
            body = state.content[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cuts.pop(0)] if state.cuts else body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setattr(download, "_PAUSE", 0.0)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def test_a_download_is_checked_and_renamed(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "deep" / "letters.bin"
    assert fetch(server.file(), target, "letters").read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["letters.bin"]
    assert capsys.readouterr().err == "downloading letters.bin (300,000 bytes)\n"
    fetch(server.file(), target, "letters")
    assert len(server.asked) == 1  # there already: verified, not fetched


def test_a_cut_download_is_resumed_within_a_call(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000]
    assert fetch(server.file(), tmp_path / "x", "letters").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_cut_download_is_resumed_by_a_later_call(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 0, 0, 0]
    with pytest.raises(DataError, match=r"connection ended after 100,000 of 300,000 bytes"):
        fetch(server.file(), tmp_path / "x", "letters")
    assert (tmp_path / "x.part").stat().st_size == 100_000
    assert not (tmp_path / "x").exists()
    server.asked.clear()
    assert fetch(server.file(), tmp_path / "x", "letters").read_bytes() == CONTENT
    assert server.asked == ["bytes=100000-"]


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "x.part").write_bytes(b"old" * 1000)
    assert fetch(server.file(), tmp_path / "x", "letters").read_bytes() == CONTENT


def test_a_complete_part_only_needs_its_checksum(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(CONTENT)
    assert fetch(server.file(), tmp_path / "x", "letters").read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_deleted(server: Server, tmp_path: Path) -> None:
    server.content = b"something else"
    found, expected = hashlib.md5(server.content).hexdigest(), hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(
        DataError, match=rf"letters\.bin gave .* MD5 checksum {found}; the published one has {expected}"
    ):
        fetch(server.file(), tmp_path / "x", "letters")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x").write_bytes(b"mine")
    with pytest.raises(DataError, match=f"published file has {expected}: delete it"):
        fetch(server.file(), tmp_path / "x", "letters")
    assert (tmp_path / "x").read_bytes() == b"mine"


def test_errors_of_the_server(server: Server, tmp_path: Path) -> None:
    server.codes = [503, 500]
    assert fetch(server.file(), tmp_path / "x", "letters").read_bytes() == CONTENT
    server.codes = [404]
    with pytest.raises(DataError, match=r"letters needs the file y in .*\(the server answered 404 Not Found\): put it"):
        fetch(server.file(), tmp_path / "y", "letters")
    assert len(server.asked) == 4  # a 404 is not asked for again


def test_offline_says_what_where_and_whence(server: Server, tmp_path: Path) -> None:
    closed = Published("http://127.0.0.1:9/letters.bin", "0" * 32)
    with pytest.raises(DataError) as caught:
        fetch(closed, tmp_path / "letters.bin", "letters")
    message = str(caught.value)
    assert message.startswith(f"letters needs the file letters.bin in {tmp_path}, and it could not be downloaded (")
    assert message.endswith("it can be had from http://127.0.0.1:9/letters.bin.")


def test_an_unusable_folder_is_one_sentence(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch(server.file(), tmp_path / "file" / "x", "letters")


# -- archives ---------------------------------------------------------------------------------------------------------


def archive(path: Path, members: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, content in members.items():
                zipped.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_only_wanted_members_are_extracted(tmp_path: Path, name: str) -> None:
    made = archive(tmp_path / name, {"in/a": b"A", "../evil": b"!", "/evil": b"!", "in/b": b"B", "in/c": b"C"})
    extract(made, {"in/a": tmp_path / "out" / "a", "in/b": tmp_path / "out" / "b"})
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted([name, "a", "b"])
    assert (tmp_path / "out" / "b").read_bytes() == b"B"
    with pytest.raises(DataError, match="lacks in/d"):
        extract(made, {"in/d": tmp_path / "d"})


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("in/a")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(info)
    with pytest.raises(DataError, match="lacks in/a"):
        extract(tmp_path / "a.tar.gz", {"in/a": tmp_path / "a"})


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_damaged_archives(tmp_path: Path, name: str) -> None:
    whole = archive(tmp_path / name, {"in/a": CONTENT}).read_bytes()
    for content in (b"no archive", whole[: len(whole) // 2]):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="could not be unpacked"):
            extract(tmp_path / name, {"in/a": tmp_path / "a"})
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("own", [False, True])
def test_cifar_comes_from_its_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    files = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    members = {f"cifar-10-batches-bin/{name}": bytes(10_000 * 3073) for name in files}
    made = archive(tmp_path / "made.tar.gz", members)
    server.content = made.read_bytes()
    published = Published(f"{server.url}/cifar-10-binary.tar.gz", hashlib.md5(server.content).hexdigest())
    monkeypatch.setattr(cifar, "_CIFAR10", cifar._CIFAR10.__class__(**{**vars(cifar._CIFAR10), "archive": published}))
    home = tmp_path / "home"
    if own:  # an archive the user put there is used, and kept
        home.mkdir()
        made.rename(home / "cifar-10-binary.tar.gz")
    source = load_source("cifar10", home, download=not own)
    assert source.x_train.shape == (50_000, 32, 32, 3)
    assert (home / "cifar-10-binary.tar.gz").exists() == own
    assert len(server.asked) == (0 if own else 1)
