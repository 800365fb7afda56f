"""Confine a process that runs a model-written program: no network, no processes, no files but its own.

Three kernel mechanisms, none of which needs privileges: resource limits (memory, CPU, file size), a seccomp filter (no
sockets, no new processes, no signals to others, no tracing), and Landlock (writes only in its directory, reads only of
the system's and Python's files). The filter is what makes the limits hold: without new processes a program cannot
outlive its end, and without sockets it reaches nobody. Landlock needs Linux 5.13; on an older kernel the other two
still hold.

It does not stop an attack on the kernel. It stops what a policy finds by trial.
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

MEMORY_BYTES = 1 << 30
FILE_BYTES = 4 << 20
OPEN_FILES = 64
MOST_FILES, MOST_BYTES = 1_000, 64 << 20
"""Limits on all files and directories of a program together (`holds_too_much`)."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


class SyscallNumbers(NamedTuple):
    """System call numbers of a machine architecture.

    arch: its identifier in seccomp; refused: calls that are refused; signals: calls that signal the process in
    their first argument.
    """

    arch: int
    clone: int
    clone3: int
    refused: tuple[int, ...]
    signals: tuple[int, ...]


# socket; fork, vfork; kill, tkill, tgkill, the queueing ones, pidfd_open and _send_signal; ptrace, process_vm_readv and
# _writev; io_uring_setup (it makes sockets); setsid, setpgid; unshare, setns, mount, bpf, keyctl, userfaultfd.
# Signals: kill, tkill, tgkill, the queueing ones, pidfd_open.
MACHINES = {
    "x86_64": SyscallNumbers(
        0xC000003E, 56, 435,
        (41, 57, 58, 62, 200, 234, 129, 297, 434, 424, 101, 310, 311, 425, 112, 109, 272, 308, 165, 321, 250, 323),
        (62, 200, 234, 129, 297, 434),
    ),
    "aarch64": SyscallNumbers(
        0xC00000B7, 220, 435,
        (198, 129, 130, 131, 138, 240, 434, 424, 117, 270, 271, 425, 157, 154, 97, 268, 40, 280, 219, 282),
        (129, 130, 131, 138, 240, 434),
    ),
}  # fmt: skip


def unsupported_reason() -> str:
    """Return why programs cannot be confined on this machine, or an empty string."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"{sys.platform} on {platform.machine()}: cannot confine programs; accepted: Linux on x86_64 or aarch64"
    return ""


def confinement(directory: str, cpu_s: int) -> Callable[[], None]:
    """Return a `preexec_fn` that confines the process about to run a program in `directory`."""

    def confine() -> None:
        limits = (
            (resource.RLIMIT_AS, MEMORY_BYTES),
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_FSIZE, FILE_BYTES),
            (resource.RLIMIT_NOFILE, OPEN_FILES),
            (resource.RLIMIT_CORE, 0),
        )
        for which, most in limits:
            resource.setrlimit(which, (most, most))
        _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        _confine_files(directory)
        _confine_calls(MACHINES[platform.machine()])

    return confine


def protect_from_signals(pid: int) -> None:
    """Forbid this process and its children to signal `pid`, directly, by group or by broadcast.

    Without seccomp this has no effect.
    """
    if unsupported_reason():
        return
    machine = MACHINES[platform.machine()]
    spared = (pid, -os.getpgid(pid) % _WORD, -1 % _WORD)
    program = [(_LOAD, 0, 0, _MACHINE_AT), (_EQUAL, 1, 0, machine.arch), (_RETURN, 0, 0, _ALLOW)]
    program += [(_LOAD, 0, 0, _NUMBER_AT)]
    for left, number in zip(range(len(machine.signals), 0, -1), machine.signals, strict=True):
        program += [(_EQUAL, left, 0, number)]
    program += [(_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    for word in spared:
        program += [(_EQUAL, 0, 1, word), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _filter_calls([*program, (_RETURN, 0, 0, _ALLOW)])


def holds_too_much(directory: str) -> bool:
    """Return True if a program has created too many files, or directories too deep to scan."""
    places, files, size = [directory], 0, 0
    while places:
        try:
            with os.scandir(places.pop()) as entries:
                for entry in entries:
                    files, size = files + 1, size + entry.stat(follow_symlinks=False).st_size
                    if files > MOST_FILES or size > MOST_BYTES:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        places.append(entry.path)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError:
            return True
    return False


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


# Landlock (include/uapi/linux/landlock.h)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_READABLE = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl", "/dev/urandom")


def _confine_files(directory: str) -> None:
    """Restrict file access with Landlock, if the kernel has it."""
    version = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    write = _WRITE_FILE | _MAKE_AND_REMOVE | (_TRUNCATE if version >= 3 else 0)
    handled = struct.pack("Q", _READ | write)
    rules = _checked(_LIBC.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0), "landlock")
    for path in (*_READABLE, sys.prefix, sys.base_prefix):
        _allow(rules, path, _READ)
    _allow(rules, "/dev/null", _READ | write)
    _allow(rules, directory, _READ | write)
    _checked(_LIBC.syscall(_RESTRICT_SELF, rules, 0), "landlock")
    os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on this system
    of_file = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
    rule = struct.pack("=Qi", access if os.path.isdir(path) else access & of_file, opened)
    _LIBC.syscall(_ADD_RULE, rules, 1, rule, 0)
    os.close(opened)


# seccomp: a program of the kernel's packet filter over (number of the call, machine, …, arguments)
_LOAD, _EQUAL, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_CLONE_THREAD, _X32 = 0x00010000, 0x40000000
_EPERM, _ENOSYS = 1, 38
_WORD = 1 << 32


def _confine_calls(machine: SyscallNumbers) -> None:
    program = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine.arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for number in machine.refused:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    # clone3 hides its flags behind a pointer; without it the C library uses clone, whose flags are visible.
    program += [(_EQUAL, 0, 1, machine.clone3), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    program += [
        (_EQUAL, 0, 3, machine.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_HAS, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    _filter_calls(program)


def _filter_calls(program: Sequence[tuple[int, int, int, int]]) -> None:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    _checked(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")
