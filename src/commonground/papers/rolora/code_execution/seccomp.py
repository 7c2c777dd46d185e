"""seccomp: a process that can compute, read files and use the pipes it has, and ask nothing else of the kernel.

What is not named here is refused (EPERM): sockets, new processes and threads, running programs, signals to others,
tracing, mounting, and opening a file in any way but for reading.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

__all__ = ["only_compute"]

_SET_SECCOMP, _FILTER = 22, 2  # prctl's PR_SET_SECCOMP and SECCOMP_MODE_FILTER
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # instructions of BPF
_NUMBER, _PROCESSOR, _THIRD_ARGUMENT = 0, 4, 32  # offsets in seccomp_data (the lower half of the argument)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# What CPython asks for while it computes and imports, but openat: numbers by processor.
_X86_64 = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "mmap": 9, "mprotect": 10,
    "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "readv": 19,
    "writev": 20, "access": 21, "sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35, "getpid": 39,
    "exit": 60, "uname": 63, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrusage": 98, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131,
    "gettid": 186, "time": 201, "futex": 202, "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "readlinkat": 267,
    "faccessat": 269, "getrandom": 318, "statx": 332, "faccessat2": 439,
}  # fmt: skip
_AARCH64 = {
    "getcwd": 17, "faccessat": 48, "close": 57, "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65,
    "writev": 66, "pread64": 67, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94,
    "futex": 98, "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
    "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135,
    "rt_sigreturn": 139, "times": 153, "uname": 160, "getrusage": 165, "gettimeofday": 169, "getpid": 172,
    "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "brk": 214,
    "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278, "statx": 291,
    "faccessat2": 439,
}  # fmt: skip
_PROCESSORS = {"x86_64": (0xC000003E, 257, _X86_64), "aarch64": (0xC00000B7, 56, _AARCH64)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def only_compute(libc: ctypes.CDLL) -> None:
    """Leave this process the calls named here; ``no_new_privs`` must be set.

    Raises:
        OSError: the kernel has no filters, or the processor is none of those known here.
    """
    machine = platform.machine()
    if machine not in _PROCESSORS or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, f"unknown for processors of kind {machine or 'unnamed'}")
    code = filter_of(*_PROCESSORS[machine])
    program = _Program(len(code) // 8, code)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def filter_of(processor: int, openat: int, allowed: dict[str, int]) -> bytes:
    """The filter's instructions, 8 bytes each.

    Args:
        processor: audit's number of it; a call in another one's convention ends the process.
        openat: number of the call that opens files, allowed for reading.
        allowed: numbers of the other calls that are allowed.
    """
    steps = [(_LOAD, 0, 0, _PROCESSOR), (_IF_EQUAL, 1, 0, processor), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    for number in sorted(allowed.values()):
        steps += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    steps += [
        (_IF_EQUAL, 0, 3, openat),  # anything else goes on to the refusal
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        (_IF_ANY_BIT, 1, 0, _WRITES),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
