"""What is written takes a file's place as a whole, and no device's or pipe's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from commonground.engine.state.files import write_atomically


def test_a_link_is_replaced_and_what_it_leads_to_is_not(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("stays")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "other").read_text() == "stays"
    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, [b"one ", b"two"])
    reader.join(timeout=20)
    assert read == ["one two"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_bytes(b"x")
    except PermissionError:
        pytest.skip("no devices may be made here")
    write_atomically(null, "into the void")
    assert stat.S_ISCHR(null.stat().st_mode)
    assert null.read_bytes() == b""


@pytest.mark.skipif(not Path("/dev/stdout").is_symlink(), reason="a system without names of what is opened")
def test_the_standard_output_by_name_is_it(tmp_path: Path) -> None:
    """Also where it is a file: what was printed before stays, and what is printed after follows."""
    code = (
        "import sys; from pathlib import Path; from commonground.engine.state.files import write_atomically as w\n"
        "for name in sys.argv[1:]: print('before', flush=True); w(Path(name), 'middle\\n'); print('after', flush=True)"
    )
    (tmp_path / "link").symlink_to("/dev/stdout")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "relative").symlink_to("../link")
    names = ["/dev/stdout", "/proc/self/fd/1", "/dev/fd/1", str(tmp_path / "folder" / "relative")]
    expected = "before\nmiddle\nafter\n" * len(names)
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code, *names], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == expected
    done = subprocess.run([sys.executable, "-c", code, *names], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == expected
    assert Path("/dev/stdout").is_symlink()
    assert (tmp_path / "link").is_symlink()
