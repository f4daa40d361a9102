"""Threads that wait briefly, no more of them than there are free cores."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.kernels import machine as machine_module
from chatapp.engine.kernels.machine import (
    LOOK_EVERY,
    SPINS,
    ComputeLock,
    seconds_of_others,
    thread_count,
    threads_of_others,
    wait_briefly,
)
from chatapp.engine.model import Request, Sampling

ROOT = Path(__file__).parents[3]
COMMANDS = [("-m", "chatapp", "complete", "Once"), ("-m", "finetune", "eval", "no-such-run")]

# Stands in torch's place and prints what the environment is when it is imported.
TORCH = """
import os
print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
os._exit(0)
"""


def test_threads_wait_briefly():
    environment = {"OMP_NUM_THREADS": "2"}
    wait_briefly(environment)
    assert environment == {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": str(SPINS)}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_the_user_has_chosen_is_left(name):
    environment = {name: "as the user likes it"}
    wait_briefly(environment)
    assert environment == {name: "as the user likes it"}


def started(command, path, **changes):
    """All that Python prints in a process of its own, in which nobody chose a waiting."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_"))
    }
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), **changes}
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_environment_is_set_when_torch_is_imported(command, tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    home = str(tmp_path / "home")
    assert started(command, [tmp_path], CHATAPP_HOME=home).strip() == str(SPINS)
    chosen = started(command, [tmp_path], CHATAPP_HOME=home, OMP_WAIT_POLICY="active")
    assert chosen.strip() == "None"


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is what torch brings on Linux")
def test_libgomp_reads_it():
    """It prints, when it is loaded, what it goes by."""
    script = (
        "import os; from chatapp.engine.kernels.machine import wait_briefly; "
        "wait_briefly(os.environ); import torch"
    )
    said = started(("-c", script), [], OMP_DISPLAY_ENV="verbose")
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in said


@pytest.mark.parametrize(
    ("most", "cores", "taken", "expected"),
    [
        (2, 2, 0.0, 2),
        (2, 2, -0.1, 2),  # what is measured is never exact
        (2, 2, 0.25, 2),  # some mouse was moved
        (2, 2, 0.5, 1),  # one program, which shares a core with a thread of ours
        (2, 2, 1.0, 1),
        (2, 2, 2.0, 1),
        (1, 1, 1.0, 1),
        (8, 8, 1.0, 7),
        (8, 8, 3.5, 4),
        (8, 8, 8.0, 1),
        (4, 8, 1.0, 4),  # two threads to a core, of which torch takes one
        (2, 16, 14.0, 2),  # bound to two cores, and the others are busy
    ],
)
def test_at_most_one_thread_for_each_free_core(most, cores, taken, expected):
    assert thread_count(most, cores, taken) == expected


class Machine:
    """Eight cores and a clock, both moved by hand."""

    def __init__(self):
        self.now = 0.0
        self.seconds: float | None = 0.0
        self.running: int | None = 0
        self.looks = 0

    def others(self):
        self.looks += 1
        return self.seconds

    def lock(self, **environment):
        return ComputeLock(
            self.others,
            lambda: self.running,
            lambda: self.now,
            8,
            environment,
            start=(self.now, self.seconds),
        )

    def passes(self, seconds, taken):
        self.now += seconds
        if self.seconds is not None:
            self.seconds += seconds * taken


@pytest.fixture
def machine(monkeypatch):
    """With torch's own number of threads at eight, which no thread is started for."""
    number = 8

    def choose(count):
        nonlocal number
        number = count

    monkeypatch.setattr(torch, "get_num_threads", lambda: number)
    monkeypatch.setattr(torch, "set_num_threads", choose)
    return Machine()


def used(lock):
    with lock:
        found = torch.get_num_threads()
    assert torch.get_num_threads() == 8
    return found


def test_the_number_follows_what_other_programs_take(machine):
    lock = machine.lock()
    assert used(lock) == 8
    machine.passes(1, taken=3)
    assert used(lock) == 5
    machine.passes(LOOK_EVERY, taken=6.5)
    assert used(lock) == 1
    machine.passes(LOOK_EVERY, taken=0)
    assert used(lock) == 8


def test_the_machine_is_looked_at_now_and_then(machine):
    lock = machine.lock()
    machine.passes(1, taken=3)
    assert used(lock) == 5
    machine.passes(LOOK_EVERY / 2, taken=0)
    assert used(lock) == 5
    assert machine.looks == 1


def test_the_first_token_knows_what_others_took_since_the_start(machine):
    machine.passes(1, taken=3)
    assert used(ComputeLock(machine.others, lambda: 0, lambda: 1.0, 8, {}, start=(0.0, 0.0))) == 5


def test_after_a_long_pause_what_counts_is_what_runs_now(machine):
    lock = machine.lock()
    machine.passes(1, taken=3)
    assert used(lock) == 5
    machine.passes(3600, taken=0)
    machine.running = 6
    assert used(lock) == 2
    machine.passes(3600, taken=7)
    machine.running = None
    assert used(lock) == 8


def test_threads_of_our_own_and_those_of_a_moment_are_not_counted(monkeypatch):
    running = iter([9, 5, 7])
    states = {"11": b"R", "12": b"S", "13": b"R"}

    def opened(path, mode):
        assert mode == "rb"
        if path == "/proc/stat":
            return io.BytesIO(b"cpu  1 2 3\nprocs_running %d\nprocs_blocked 4\n" % next(running))
        return io.BytesIO(
            b"%s (a) R name) %s 1 2" % ((name := path.split("/")[4]).encode(), states[name])
        )

    monkeypatch.setattr(machine_module, "open", opened, raising=False)
    monkeypatch.setattr(os, "listdir", lambda _: list(states))
    assert threads_of_others() == 3


def test_a_token_is_computed_on_free_cores(machine, local, monkeypatch):
    local.lock = machine.lock()
    machine.passes(1, taken=3)
    found, compute = [], LocalModel.next_logits

    def noted(*arguments):
        found.append(torch.get_num_threads())
        return compute(*arguments)

    monkeypatch.setattr(LocalModel, "next_logits", noted)
    monkeypatch.setattr(LocalModel, "write", lambda *_: False)
    list(local.generate(Request([1, 2, 3], Sampling(seed=0, max_tokens=2))))
    assert found == [5, 5]


def test_a_computation_that_fails_gives_threads_and_lock_back(machine):
    lock = machine.lock()
    machine.passes(1, taken=3)
    with pytest.raises(RuntimeError), lock:
        raise RuntimeError
    assert used(lock) == 5


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_a_number_that_the_user_has_chosen_stays(name, machine):
    lock = machine.lock(**{name: "8"})
    machine.passes(1, taken=3)
    assert used(lock) == 8


def test_without_a_count_of_the_cores_seconds_all_threads_compute(machine):
    machine.seconds = None
    lock = machine.lock()
    machine.passes(1, taken=3)
    assert used(lock) == 8


def test_a_system_without_proc(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(machine_module, "open", missing, raising=False)
    assert seconds_of_others() is None
    assert threads_of_others() is None


def test_what_this_process_computes_and_what_is_idle_is_not_counted(monkeypatch):
    # Two cores in ticks: user, nice, system, idle, waiting for disks, interrupts, stolen, guests.
    text = "cpu  1000 200 300 90000 4000 50 60 700 80 9\ncpu0 1 2 3\n"
    monkeypatch.setattr(machine_module, "open", lambda *_, **__: io.StringIO(text), raising=False)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    monkeypatch.setattr(time, "process_time", lambda: 6.0)
    assert seconds_of_others() == pytest.approx(16.1 - 6.0)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system has no /proc/stat")
def test_what_another_process_computes_is_counted():
    before = seconds_of_others()
    other = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", other], check=True)
    after = seconds_of_others()
    assert before is not None
    assert after is not None
    assert after - before > 0.4
