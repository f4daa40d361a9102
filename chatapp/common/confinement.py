"""What a process that handles foreign code or bytes gives up before it begins.

On Linux the kernel then refuses it other processes (to start, signal, trace or limit one, or change
its priority), memory that outlives or escapes its limit, and, without `network`, sockets. Where the
kernel has Landlock, it also refuses files: see `confine`.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

# The filter of system calls; names and numbers as in linux/{filter,seccomp,audit}.h.
_LOAD, _IF_EQUAL, _IF_LARGER, _IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_CLONE_THREAD, _X32 = 0x10000, 0x40000000
_CLONE3 = 435
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = """
kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
pidfd_send_signal 424 424, pidfd_getfd 438 438, ptrace 101 117, process_vm_readv 310 270,
process_vm_writev 311 271, process_madvise 440 440, process_mrelease 448 448,
shmget 29 194, shmat 30 196, semget 64 190, msgget 68 186, mq_open 240 180, memfd_create 319 279,
memfd_secret 447 447, setrlimit 160 164, setpriority 141 140, sched_setparam 142 118,
sched_setscheduler 144 119, sched_setaffinity 203 122, sched_setattr 314 274, ioprio_set 251 30,
migrate_pages 256 238, move_pages 279 239, unshare 272 97, setns 308 268, bpf 321 280,
perf_event_open 298 241, userfaultfd 323 282, add_key 248 217, request_key 249 218, keyctl 250 219,
io_uring_setup 425 425, fork 57 -, vfork 58 -"""
_SOCKET = "socket 41 198"
_CHECKED = "clone 56 220, prlimit64 302 261, fcntl 72 25, ioctl 16 29"
"""Refused by their arguments: see `_refuse_calls`."""

# Of fcntl: F_SETOWN, F_SETOWN_EX, F_SETPIPE_SZ; of ioctl: FIOSETOWN, SIOCSPGRP, TIOCSTI.
_COMMANDS = ((8, 15, 1031), (0x8901, 0x8902, 0x5412))
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2

# Landlock: system calls, and rights as in linux/landlock.h.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ, _WRITE_FILE, _TRUNCATE = 0b1101, 0b10, 1 << 14
"""_READ: to run and read a file, and to list a folder."""

_OF_FILES = 0b111 | _TRUNCATE
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/System", "/proc/cpuinfo"),
    *("/proc/meminfo", "/sys/devices/system/cpu"),
)


def confine(memory: int, *, network: bool = False, folder: str | None = None) -> str:
    """Give up what the module's docstring names; return "", or why the kernel cannot refuse it.

    memory: bytes of address space; not on macOS. folder: the only one that can be written; then
    nothing can be read but it, Python and the system's libraries. None: every file can be read, and
    none can be written.
    """
    _set_limits(memory, None if folder is None else 16 * 2**20)
    if sys.platform != "linux":
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return f"the kernel cannot limit code: {os.strerror(ctypes.get_errno())}"
    _refuse_files(libc, folder)
    return _refuse_calls(libc, network=network)


def _set_limits(memory: int, file: int | None) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, memory)]
    limits += [] if file is None else [(resource.RLIMIT_FSIZE, file), (resource.RLIMIT_NOFILE, 256)]
    for limit, most in limits:
        with suppress(OSError, ValueError):  # macOS refuses that of memory
            resource.setrlimit(limit, (most, most))


def _refuse_files(libc: ctypes.CDLL, folder: str | None) -> None:
    """Refuse files, where the kernel has Landlock."""
    version = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return
    everything = (1 << min(12 + version, 15)) - 1
    handled = everything if folder is not None else everything & ~_READ
    rules = libc.syscall(_CREATE_RULESET, struct.pack("Q", handled), 8, 0)
    paths = [(path, _READ | _WRITE_FILE) for path in _DEVICES]
    if folder is not None:
        # Not all of sys.path, where `python -m chatapp` puts the folder that you are in.
        packages = [path for path in sys.path if path.endswith("-packages")]
        python = {sys.prefix, sys.base_prefix, *packages}
        paths += [(folder, everything), *((path, _READ) for path in (*_SYSTEM, *python))]
    for path, rights in paths:
        with suppress(OSError):  # it is not there
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = handled & rights & (~0 if os.path.isdir(path) else _OF_FILES)
            libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", allowed, place), 0)
            os.close(place)
    libc.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _refuse_calls(libc: ctypes.CDLL, *, network: bool) -> str:
    """Refuse system calls; threads are allowed. Returns why that is not possible, or ""."""
    machine = os.uname().machine
    if machine not in _MACHINES:
        return "this machine's system calls are not known"
    clone, prlimit, *with_command = _numbers(_CHECKED, machine)
    refuse, allow = (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)

    def load(argument: int, half: int = 0) -> tuple[int, ...]:
        return _LOAD, 0, 0, _ARGUMENTS + 8 * argument + 4 * half

    # (operation, lines to skip if it holds, and if not, operand)
    lines: list[tuple[int, ...]] = [
        *((_LOAD, 0, 0, _MACHINE), (_IF_EQUAL, 1, 0, _MACHINES[machine]), refuse),
        *((_LOAD, 0, 0, _NUMBER), (_IF_LARGER, 0, 1, _X32), refuse),
        *((_IF_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)),  # clone instead
    ]
    for number in _numbers(_REFUSED if network else f"{_REFUSED}, {_SOCKET}", machine):
        lines += [(_IF_EQUAL, 0, 1, number), refuse]

    def add(number: int, rest: Iterable[tuple[int, ...]]) -> None:
        rest = [*rest, allow]
        lines.extend([(_IF_EQUAL, 0, len(rest), number), *rest])

    # A limit is read, not set: both halves of the address of the new one are 0.
    halves = [[load(2, half), (_IF_EQUAL, 1, 0, 0), refuse] for half in (0, 1)]
    add(prlimit, halves[0] + halves[1])
    add(clone, [load(0), (_IF_BITS, 1, 0, _CLONE_THREAD), refuse])
    for number, commands in zip(with_command, _COMMANDS, strict=True):
        checks = [line for command in commands for line in ((_IF_EQUAL, 0, 1, command), refuse)]
        add(number, [load(1), *checks])
    lines.append(allow)
    table = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(table))
    if libc.prctl(_SECCOMP, _FILTER, program, 0, 0):
        return f"the kernel cannot limit code: {os.strerror(ctypes.get_errno())}"
    return ""


def _numbers(table: str, machine: str) -> list[int]:
    """The numbers of system calls, of those that a machine has."""
    numbers = [entry.split()[1 + [*_MACHINES].index(machine)] for entry in table.split(",")]
    return [int(number) for number in numbers if number != "-"]
