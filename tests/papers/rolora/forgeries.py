"""Programs that claim to have passed, or reach for what they may not have; ``f(x)`` should be x + 1."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

__all__ = ["FORBIDDEN", "FORGED"]

FORGED = {
    "leaves with exit code 0": """
        import sys
        sys.exit(0)""",
    "leaves at once": """
        import os
        os._exit(0)""",
    "leaves from within": """
        import os
        def f(x):
            os._exit(0)""",
    "raises SystemExit from within": """
        def f(x):
            raise SystemExit(0)""",
    "equals everything": """
        class E(int):
            __eq__ = __ge__ = __le__ = lambda self, other: True
            __hash__ = int.__hash__
        def f(x):
            return E(0)""",
    "equals everything and is no number": """
        class E:
            __eq__ = lambda self, other: True
        def f(x):
            return E()""",
    "patches builtins": """
        import builtins
        class Never(Exception): pass
        builtins.AssertionError = Never
        builtins.abs = builtins.len = builtins.hash = lambda x: 0
        builtins.print = builtins.repr = builtins.isinstance = lambda *x: True
        def f(x):
            return 0""",
    "patches json and the pipes' module": """
        import json, sys
        json.dumps = lambda *x: '["passed", ""]'
        for name, module in list(sys.modules.items()):
            if name.endswith("values"):
                module.encode = lambda value: ["passed", ""]
        def f(x):
            return 0""",
    "defines check": """
        import __main__, sys
        check = __main__.check = lambda f: None
        for module in list(sys.modules.values()):
            module.check = check
        def f(x):
            return 0""",
    "walks frames": """
        import sys
        def f(x):
            frame = sys._getframe()
            while frame:
                frame.f_globals["check"] = lambda f: None
                for value in list(frame.f_locals.values()):
                    if isinstance(value, int) and value > x:
                        return value
                frame = frame.f_back
            return 0""",
    "looks through all objects": """
        import gc
        def f(x):
            wanted = " ".join(["assert", "candidate"])
            for thing in gc.get_objects():
                for part in gc.get_referents(thing):
                    if isinstance(part, str) and part != wanted and wanted in part:
                        return x + 1
            return 0""",
    "writes to every descriptor": """
        import os
        def f(x):
            for fd in range(64):
                for said in (b'["passed", ""]', b'{"value": null}'):
                    try: os.write(fd, said)
                    except OSError: pass
            return 0""",
    "writes a verdict and leaves": """
        import os
        for fd in range(64):
            try: os.write(fd, b'["passed", ""]')
            except OSError: pass
        os._exit(0)""",
    "answers with what is no value": """
        import os
        for fd in range(64):
            try: os.write(fd, b"[" * 50000 + bytes([10]))
            except OSError: pass
        os._exit(0)""",
    "answers before it is asked": """
        import os
        for fd in range(64):
            try: os.write(fd, b'{"value": null}' + bytes([10]) + b'{"value": true}' + bytes([10]))
            except OSError: pass""",
    "writes into the tests' process": """
        import os
        def f(x):
            for pid in range(os.getpid() - 30, os.getpid() + 30):
                for fd in range(32):
                    try: open(f"/proc/{pid}/fd/{fd}", "wb", 0).write(b'["passed", ""]')
                    except OSError: pass
            return 0""",
    "reads the tests from others' arguments": """
        import os
        def f(x):
            for pid in os.listdir("/proc"):
                if "check" in open(f"/proc/{pid}/cmdline").read():
                    return x + 1
            return 0""",
    "raises what tests would": """
        def f(x):
            raise AssertionError""",
}
FORGED = {how: dedent(text) for how, text in FORGED.items()}

# Each ends in PermissionError.
FORBIDDEN = {
    "a socket": """
        import socket
        socket.socket()""",
    "a pair of sockets": """
        import socket
        socket.socketpair()""",
    "a fork": """
        import os
        os.fork()""",
    "another program": """
        import subprocess
        subprocess.run(["true"])""",
    "an exec": """
        import os
        os.execv("/bin/true", ["true"])""",
    "a thread": """
        import threading
        try:
            threading.Thread(target=print).start()
        except RuntimeError:
            raise PermissionError""",
    "killing the parent": """
        import os
        os.kill(os.getppid(), 0)""",  # asks for the right to; a signal that works would end the test run
    "killing its group": """
        import os
        os.killpg(0, 0)""",
    "a file": """
        open("file", "w")""",
    "a huge file": """
        import os
        os.truncate(os.open("big", os.O_RDWR | os.O_CREAT), 1 << 40)""",
    "a folder": """
        import os
        os.mkdir("folder")""",
    "the user's home": f"""
        import os
        os.listdir({str(Path.home())!r})""",
    "the password file": """
        open("/etc/passwd")""",
    "another's environment": """
        import os
        open(f"/proc/{os.getppid()}/environ")""",
    "its own memory": """
        open("/proc/self/mem")""",
    "another's limits": """
        import os, resource
        resource.prlimit(os.getppid(), resource.RLIMIT_CPU)""",
    "tracing": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace(16, 1, 0, 0)
        if ctypes.get_errno() == 1:
            raise PermissionError""",
}
FORBIDDEN = {what: dedent(text) for what, text in FORBIDDEN.items()}
