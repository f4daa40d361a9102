"""Runs Python code: `python python_runner.py MEMORY`, with {"code": …} on standard input.

It prints what the code prints, and the value of its last line as an interactive interpreter does.

Invariant: the limits are set before the code is compiled. On Linux the kernel refuses it other
processes and the network, so the limit of memory, in bytes, is that of everything it does. It also
refuses signals to other processes, tracing them, and their memory and limits.
"""

import ast
import ctypes
import errno
import json
import linecache
import os
import platform
import resource
import struct
import sys
import traceback

_NAME = "<code>"
_MOST_FILE_BYTES = 16 * 2**20

# The filter of system calls; names and numbers as in linux/{filter,seccomp,audit}.h.
_LOAD, _IF_EQUAL, _IF_LARGER, _IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_CLONE_THREAD, _X32 = 0x10000, 0x40000000
_CLONE3 = 435
_REFUSED = (425, 424, 438)  # io_uring_setup, pidfd_send_signal, pidfd_getfd
# clone; prlimit64; socket, kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, ptrace,
# process_vm_readv, process_vm_writev, and, where they exist, fork and vfork
_CALLS = {
    "x86_64": (0xC000003E, 56, 302, (41, 62, 200, 234, 129, 297, 101, 310, 311, 57, 58)),
    "aarch64": (0xC00000B7, 220, 261, (198, 129, 130, 131, 138, 240, 117, 270, 271)),
}
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


def main() -> None:
    """See above."""
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _MOST_FILE_BYTES),
        (resource.RLIMIT_AS, int(sys.argv[1])),
    ):
        try:
            resource.setrlimit(limit, (most, most))
        except (OSError, ValueError):  # macOS refuses the last
            continue
    code = json.loads(sys.stdin.read())["code"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the code has no input
    linecache.cache[_NAME] = len(code), None, code.splitlines(keepends=True), _NAME
    if sys.platform == "linux":
        _refuse_others_and_network()
    try:
        _run(code)
    except Exception as error:
        sys.stdout.flush()
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != _NAME:
            trace = trace.tb_next  # this program's own frames
        traceback.print_exception(error.with_traceback(trace), limit=-3)
        sys.exit(1)


def _run(code: str) -> None:
    tree = ast.parse(code, _NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    names = {"__name__": "__main__"}
    exec(compile(tree, _NAME, "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), _NAME, "eval"), names)
        if value is not None:
            print(repr(value))


def _refuse_others_and_network() -> None:
    """Let the kernel refuse what starts a process, reaches another one, or opens a socket; threads
    are allowed.
    """
    if platform.machine() not in _CALLS:
        sys.exit("this machine's system calls are not known, so no code is run")
    machine, clone, prlimit, refused = _CALLS[platform.machine()]
    refuse, allow = (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    first = (_LOAD, 0, 0, _FIRST_ARGUMENT)
    # (operation, lines to skip if it holds, and if not, operand)
    lines = [
        *((_LOAD, 0, 0, _MACHINE), (_IF_EQUAL, 1, 0, machine), refuse),
        *((_LOAD, 0, 0, _NUMBER), (_IF_LARGER, 0, 1, _X32), refuse),
        *((_IF_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)),  # clone instead
    ]
    for number in (*refused, *_REFUSED):
        lines += [(_IF_EQUAL, 0, 1, number), refuse]
    lines += [
        *((_IF_EQUAL, 0, 4, prlimit), first, (_IF_EQUAL, 1, 0, 0), refuse, allow),  # its own
        *((_IF_EQUAL, 0, 3, clone), first, (_IF_BITS, 1, 0, _CLONE_THREAD), refuse, allow),
    ]
    table = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(table))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or prctl(_SECCOMP, _FILTER, program, 0, 0):
        sys.exit(f"the kernel cannot limit code, so none is run: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
