"""The device lock: between threads, between processes, shared and exclusive, and after a death."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpt_search.domain.errors import InputError
from gpt_search.execution.devices import DeviceLock, build_lock_shared, runtime_folder

_HOLD = """
import sys
from pathlib import Path
from gpt_search.execution.devices import DeviceLock
with DeviceLock(sys.argv[1], Path(sys.argv[2])).hold(shared=sys.argv[3] == "shared"):
    print("held", flush=True)
    sys.stdin.read()
"""


class _GaveUp(Exception):
    pass


def _is_free(device: str, folder, *, shared: bool) -> bool:
    def give_up() -> None:
        raise _GaveUp

    try:
        with DeviceLock(device, folder).hold(shared=shared, check=give_up):
            return True
    except _GaveUp:
        return False


@pytest.fixture
def holder(tmp_path):
    started = []

    def start(device: str, how: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, device, str(tmp_path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_two_processes_exclude_each_other_on_one_device_only(holder, tmp_path):
    holder("cpu", "exclusive")
    assert not _is_free("cpu", tmp_path, shared=False)
    assert not _is_free("cpu", tmp_path, shared=True)
    assert _is_free("GPU-8f1c", tmp_path, shared=False)


def test_shared_holders_stand_beside_each_other_and_keep_an_exclusive_one_out(holder, tmp_path):
    holder("cpu", "shared")
    assert _is_free("cpu", tmp_path, shared=True)
    assert not _is_free("cpu", tmp_path, shared=False)


def test_the_lock_of_a_killed_holder_is_free(holder, tmp_path):
    process = holder("cpu", "exclusive")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert _is_free("cpu", tmp_path, shared=False)


def test_a_timing_that_waits_is_not_overtaken_by_new_builds(holder, tmp_path):
    holder("cpu", "shared")
    queued, stop = threading.Event(), threading.Event()

    def check() -> None:
        queued.set()
        if stop.is_set():
            raise _GaveUp

    def wait_for_it() -> None:
        try:
            with DeviceLock("cpu", tmp_path).hold(check=check):
                pass
        except _GaveUp:
            pass

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    assert queued.wait(20)
    assert not _is_free("cpu", tmp_path, shared=True)
    stop.set()
    thread.join()
    assert _is_free("cpu", tmp_path, shared=True)


def test_threads_of_one_process_exclude_each_other_too(tmp_path):
    with DeviceLock("cpu", tmp_path).hold() as waited:
        assert waited >= 0
        assert not _is_free("cpu", tmp_path, shared=True)
    assert _is_free("cpu", tmp_path, shared=False)


def test_device_names_become_distinct_files_inside_the_folder(tmp_path):
    for device in ("../../etc/passwd", "GPU 0", "GPU/0", "GPU-0"):
        with DeviceLock(device, tmp_path).hold():
            pass
    assert len(list(tmp_path.iterdir())) == 8
    assert all(p.suffix in (".lock", ".queue") and "/" not in p.name for p in tmp_path.iterdir())


def test_the_runtime_folder_is_private_and_can_be_set(tmp_path, monkeypatch):
    monkeypatch.setenv("GPT_SEARCH_RUNTIME_DIR", str(tmp_path / "own"))
    assert runtime_folder() == tmp_path / "own"
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "own").rmdir()
    (tmp_path / "own").symlink_to(tmp_path)
    with pytest.raises(InputError, match="GPT_SEARCH_RUNTIME_DIR"):
        runtime_folder()


def test_no_descriptor_stays_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for shared in (True, False):
        with DeviceLock("cpu", tmp_path).hold(shared=shared):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_builds_run_beside_each_other_on_the_cpu_only():
    assert build_lock_shared("cpu")
    assert not build_lock_shared("GPU-8f1c")
