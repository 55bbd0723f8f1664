"""One worker: every way to die, memory, timeouts, pausing, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from pathlib import Path

import pytest
from helpers_execution import MARK, MEMORY_LIMIT, backend_name, children, eventually, marked, request, worker_spec

from gpt_search.backends.synthetic import synthetic_golden
from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.execution import worker_log
from gpt_search.execution.launcher import Worker, WorkerFailed, WorkerSpec
from gpt_search.execution.supervisor import state_of

_GATE = {"slot": "candidate", "atol": 1e-5, "rtol": 1e-5}
LONG = 60.0


def build(worker: Worker, kind: str = "no", timeout_s: float = LONG):
    return worker.ask("build", request("candidate", {"fail": kind}), timeout_s=timeout_s, phase="build")


@pytest.fixture
def mark(monkeypatch):
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    for pid in marked(value):
        os.kill(pid, signal.SIGKILL)


def fails(worker: Worker, kind: str, timeout_s: float = LONG) -> WorkerFailed:
    with pytest.raises(WorkerFailed) as caught:
        build(worker, kind, timeout_s)
    return caught.value


@pytest.mark.parametrize(
    ("kind", "outcome", "says"),
    [
        ("segv", Outcome.CRASH, "died by SIGSEGV in phase build"),
        ("abort", Outcome.CRASH, "died by SIGABRT in phase build"),
        ("exit", Outcome.CRASH, "exited with code 7 in phase build"),
        ("exit0", Outcome.CRASH, "exited with code 0 in phase build"),
        ("exception", Outcome.CRASH, "RuntimeError: on demand: an exception"),
        ("garbage", Outcome.CRASH, "answered with garbage in phase build"),
        ("close", Outcome.CRASH, "closed its channel in phase build"),
        ("memory", Outcome.MEMORY, "MemoryError"),
        ("memory_tree", Outcome.MEMORY, "the limit is 0.40 GB"),
    ],
)
def test_a_death_is_an_outcome_and_leaves_no_process(tmp_path, mark, kind, outcome, says):
    worker = Worker(worker_spec(tmp_path, limit=MEMORY_LIMIT))
    failed = fails(worker, kind)
    assert failed.outcome is outcome
    assert says in failed.message
    assert not failed.alive
    assert not worker.alive
    assert marked(mark) == []
    with pytest.raises(WorkerFailed):
        build(worker)


@pytest.mark.parametrize("kind", ["hang", "stop"])
def test_a_phase_over_its_limit_is_killed(tmp_path, mark, kind):
    worker = Worker(worker_spec(tmp_path))
    failed = fails(worker, kind, timeout_s=0.3)
    assert failed.outcome is Outcome.TIMEOUT
    assert failed.message == "phase build took longer than its limit of 0.3 s"
    assert marked(mark) == []


def test_a_refused_build_leaves_the_worker_usable(tmp_path):
    with Worker(worker_spec(tmp_path)) as worker:
        failed = fails(worker, "build_error")
        assert (failed.outcome, failed.alive) == (Outcome.BUILD_ERROR, True)
        assert failed.message == "on demand: the compiler refuses this route"
        pid = worker.pid
        assert build(worker).fields["fingerprint"]
        assert worker.ask("gate", _GATE, timeout_s=LONG, phase="gate").fields["losses"][0]["y"]["lInf"] >= 0
        assert worker.pid == pid


def test_a_compiler_that_prints_disturbs_nobody_and_is_in_the_log(tmp_path):
    spec = worker_spec(tmp_path)
    spec = WorkerSpec(spec.backend, spec.workload, spec.golden, log_dir=tmp_path / "logs")
    with Worker(spec) as worker:
        assert build(worker, "chatter").kind == "built"
        assert worker.log.path is not None
        assert "GPTSRCH1 and to stderr" in worker.log.path.read_text()
        assert worker.log.tail().endswith("chatter ends")
    assert [p.name for p in (tmp_path / "logs").iterdir()] == [worker.log.path.name]


FLOOD = """
import os
import time

from gpt_search.backends.synthetic import SyntheticBackend


class Flood(SyntheticBackend):
    def build(self, workload, route, options):
        os.write(1, b"flood\\n" * 50_000)
        end = time.monotonic() + 60
        while os.fstat(1).st_size > 100_000 and time.monotonic() < end:
            time.sleep(0.01)
        os.write(1, f"{os.fstat(1).st_size} bytes are left".encode())
        return super().build(workload, route, options)
"""


def test_a_log_is_bounded_while_the_compiler_still_prints(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_log, "LIMIT", 100_000)
    (tmp_path / "flood.py").write_text(FLOOD)
    name = f"{tmp_path / 'flood.py'}:Flood:{backend_name().partition(':')[2]}"
    with Worker(worker_spec(tmp_path, name)) as worker:
        assert worker.ask("build", request("only"), timeout_s=LONG, phase="build").kind == "built"
        assert worker.log.tail() == "0 bytes are left"


TELLS = """
import threading

from gpt_search.backends.synthetic import SyntheticBackend


class Tells(SyntheticBackend):
    on_progress = None

    def build(self, workload, route, options):
        # From several threads at once, as compilers do; a message in pieces would be garbage.
        threads = [threading.Thread(target=self.on_progress, args=("tactics" * 100, i, 8)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return super().build(workload, route, options)
"""


def test_what_a_backend_tells_of_a_build_is_passed_on_now_and_then(tmp_path, monkeypatch):
    (tmp_path / "tells.py").write_text(TELLS)
    name = f"{tmp_path / 'tells.py'}:Tells:{backend_name().partition(':')[2]}"
    with Worker(worker_spec(tmp_path, name)) as worker:
        assert worker.ask("build", request("only"), timeout_s=LONG, phase="build").kind == "built"  # nobody listens
        told = []
        worker.on_progress = lambda *step: told.append(step)
        for expected in (1, 2):
            assert worker.ask("build", request("only"), timeout_s=LONG, phase="build").kind == "built"
            assert len(told) == expected  # one of eight: the others came within the same second
        phase, done, steps = told[0]
        assert phase == ("tactics" * 100)[:200] and 0 <= done < 8 and steps == 8


@pytest.mark.parametrize("then", ["segv", "hang", "garbage", "exit"])
def test_a_daemonised_grandchild_dies_with_the_worker(tmp_path, mark, then):
    name = backend_name(fail={"": f"grandchild+{then}"})
    worker = Worker(worker_spec(tmp_path, name))
    with pytest.raises(WorkerFailed):
        worker.ask("build", request("candidate"), timeout_s=0.5, phase="build")
    assert marked(mark) == []


def test_a_daemonised_grandchild_of_a_healthy_worker_dies_when_it_is_closed(tmp_path, mark):
    worker = Worker(worker_spec(tmp_path))
    build(worker, "grandchild")
    # Supervisor, worker, and the grandchild, which left both; it may still be on its way into its program.
    assert eventually(lambda: len({os.getsid(pid) for pid in marked(mark)}) == 3)
    worker.close()
    assert marked(mark) == []


@pytest.mark.parametrize("paused", [False, True])
def test_everything_dies_with_a_parent_that_is_killed(tmp_path, mark, paused):
    spec = worker_spec(tmp_path)
    code = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from helpers_execution import request, worker_spec
        from gpt_search.execution.launcher import Worker
        worker = Worker(worker_spec(Path({str(tmp_path)!r})))
        worker.ask("build", request("candidate", {{"fail": "grandchild"}}), timeout_s=60, phase="build")
        if {paused}:
            worker.pause()
        print("ready", flush=True)
        time.sleep(3600)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert spec.workload is not None
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    assert eventually(lambda: len(marked(mark)) == 4)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: marked(mark) == [])


def test_a_worker_dies_with_its_supervisor(tmp_path, mark):
    worker = Worker(worker_spec(tmp_path))
    os.kill(worker._process.pid, signal.SIGKILL)
    assert eventually(lambda: marked(mark) == [])
    assert fails(worker, "no").outcome is Outcome.CRASH


def test_a_worker_killed_from_outside_is_a_crash(tmp_path, mark):
    worker = Worker(worker_spec(tmp_path))
    os.kill(worker.pid, signal.SIGKILL)
    failed = fails(worker, "no")
    assert failed.outcome is Outcome.CRASH
    assert "died by SIGKILL" in failed.message
    assert marked(mark) == []


def test_a_paused_worker_stands_still_until_it_is_asked(tmp_path):
    with Worker(worker_spec(tmp_path)) as worker:
        worker.pause()
        worker.pause()
        assert state_of(worker.pid) == "T"
        assert build(worker).kind == "built"
        assert state_of(worker.pid) != "T"
        worker.pause()
        worker.resume()
        assert eventually(lambda: state_of(worker.pid) != "T")
        worker.pause()
    assert not Path(f"/proc/{worker.pid}").exists()


def test_fifty_restarts_leave_no_zombie_and_no_descriptor(tmp_path, mark):
    spec = worker_spec(tmp_path)
    Worker(spec).close()
    gc.collect()  # what an earlier test left to the collector would close its descriptors meanwhile
    before, processes = len(list(Path("/proc/self/fd").iterdir())), children()
    threads = threading.active_count()

    def ten(kind: str) -> None:
        for _ in range(10):
            worker = Worker(spec)
            if kind != "close":
                fails(worker, kind)
            worker.close()

    several = [threading.Thread(target=ten, args=(kind,)) for kind in ("close", "segv", "exit", "garbage", "exception")]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert children() == processes
    assert threading.active_count() == threads
    assert marked(mark) == []
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_worker_started_in_a_thread_outlives_that_thread(tmp_path):
    made: list[Worker] = []
    thread = threading.Thread(target=lambda: made.append(Worker(worker_spec(tmp_path))))
    thread.start()
    thread.join()
    with made[0] as worker:
        assert build(worker).kind == "built"


def test_kill_from_another_thread_ends_a_wait(tmp_path, mark):
    worker = Worker(worker_spec(tmp_path))
    killer = threading.Timer(0.2, worker.kill)
    killer.start()
    assert fails(worker, "hang").outcome is Outcome.CRASH
    killer.join()
    worker.close()
    assert marked(mark) == []


def test_a_backend_that_does_not_load_says_why(tmp_path, mark):
    with pytest.raises(InputError, match="unknown backend 'onnxruntme'; did you mean 'onnxruntime'"):
        Worker(worker_spec(tmp_path, "onnxruntme"))
    dead = tmp_path / "dead.py"
    dead.write_text("import os\nclass Dead:\n    def __init__(self):\n        os.abort()\n")
    with pytest.raises(WorkerFailed, match="died by SIGABRT in phase start"):
        Worker(worker_spec(tmp_path, f"{dead}:Dead"))
    assert marked(mark) == []


def test_answers_to_the_wrong_question_are_garbage(tmp_path):
    liar = tmp_path / "liar.py"
    liar.write_text(
        textwrap.dedent(
            """
            import os, socket
            from gpt_search.backends.synthetic import SyntheticBackend
            from gpt_search.execution.messages import Message, encode
            class Liar(SyntheticBackend):
                def build(self, workload, route, options):
                    fields = {"launch": "", "launch_note": "", "again": "", "simulated": True, "device": {}}
                    for part in encode(Message("samples", 2, fields)):
                        os.write(int(os.environ["GPT_SEARCH_CHANNEL"]), part)
            """
        )
    )
    with Worker(worker_spec(tmp_path, f"{liar}:Liar")) as worker:
        failed = fails(worker, "no")
    assert failed.outcome is Outcome.CRASH
    assert "request 2 (build) got answer 2 (samples)" in failed.message


def test_engines_are_saved_loaded_released_and_inferred(tmp_path):
    with Worker(worker_spec(tmp_path)) as worker:
        built = build(worker).fields["fingerprint"]
        data = worker.ask("save", {"slot": "candidate"}, timeout_s=LONG, phase="save").arrays["data"]
        loaded = worker.ask("load", {"slot": "other"}, {"data": data}, timeout_s=LONG, phase="load")
        assert loaded.fields["fingerprint"] == built
        pair = synthetic_golden()[0]
        outputs = worker.ask("infer", {"slot": "other"}, pair.inputs, timeout_s=LONG, phase="infer").arrays
        assert list(outputs) == list(pair.outputs)
        worker.ask("release", {"slot": "other"}, timeout_s=LONG, phase="release")
        with pytest.raises(WorkerFailed, match="nothing is built in slot 'other'"):
            worker.ask("save", {"slot": "other"}, timeout_s=LONG, phase="save")


def test_an_interrupt_while_waiting_ends_the_worker(tmp_path, mark):
    worker = Worker(worker_spec(tmp_path))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            build(worker, "hang")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not worker.alive
    assert marked(mark) == []


def test_a_message_of_many_megabytes_is_cut(tmp_path):
    (tmp_path / "dump.py").write_text(
        "from gpt_search.backends.synthetic import SyntheticBackend\n"
        "class Dump(SyntheticBackend):\n"
        "    def build(self, workload, route, options): raise RuntimeError('x' * 50_000_000)\n"
    )
    spec = worker_spec(tmp_path)
    with Worker(WorkerSpec(f"{tmp_path / 'dump.py'}:Dump:{backend_name().partition(':')[2]}", spec.workload)) as worker:
        failed = fails(worker, "no")
    assert failed.outcome is Outcome.CRASH and failed.message.startswith("RuntimeError: xxx")
    assert len(failed.message) < 200_000 and failed.message.endswith("... (50000014 characters in all)")
