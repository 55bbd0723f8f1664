"""What is seen on a terminal of 80 columns, through pipes, and after Ctrl-C, on a real model."""

import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import time
import uuid

import psutil
import pytest
from e2e_runs import COMMAND, TIMEOUT_S, environment, run

from gpt_search.workloads.catalogue import write_workload

pty = pytest.importorskip("pty")

COLUMNS = 80
MARK = "GPT_SEARCH_TEST_RUN"
KNOBS = "-session:graph_level=[*] -session:prepacking=[*] -session:mem_pattern=[*] -session:intra_threads=1"
TUNE = ("tune", "bert.onnx", "--shape", "input_ids=1x16", "--strategy", "random", "--knobs", KNOBS)
STUDY = "bert-random-0"


@pytest.fixture
def folder(tmp_path):
    write_workload("bert", tmp_path / "bert.onnx", layers=2, hidden=64, heads=2, sequence=16, vocabulary=100)
    return tmp_path


class Screen:
    """A terminal that knows what the program uses of one: carriage return, erase line, cursor up, hide and show.

    lines: what stays on the screen. drawn: every line that was ever seen, when it was left or erased.
    """

    def __init__(self, data: bytes) -> None:
        self.lines, self.drawn, self.row, self.column = [""], [], 0, 0
        for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\r\n\x1b]+|\x1b", data.decode()):
            self._take(token)
        self.drawn.append(self.lines[self.row])

    def _take(self, token: str) -> None:
        if token == "\r":
            self.column = 0
        elif token == "\n":
            self.drawn.append(self.lines[self.row])
            self.row += 1
            self.lines += [""] * (self.row == len(self.lines))
        elif token == "\x1b[2K":
            self.drawn.append(self.lines[self.row])
            self.lines[self.row] = ""
        elif token.endswith("A") and token.startswith("\x1b["):
            self.row -= int(token[2:-1] or 1)
            assert self.row >= 0
        elif re.fullmatch(r"\x1b\[(\?25[lh]|[0-9;]*m)", token):
            pass
        else:
            assert not token.startswith("\x1b"), f"unknown control sequence {token!r}"
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + token + line[self.column + len(token) :]
            self.column += len(token)

    @property
    def text(self) -> list[str]:
        """What stays, without the empty lines at the end."""
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def on_terminal(*args, cwd, interrupt_at=None, close_at=None):
    """Exit code and output of `gpt-search ARGS` on a terminal of 80 columns.

    When a text appears, Ctrl-C is typed or the terminal goes away.
    """
    pid, fd = pty.fork()
    if pid == 0:  # nothing but exec: the parent has threads
        try:
            import fcntl
            import struct
            import termios

            os.chdir(cwd)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
            env = environment() | {"TERM": "xterm-256color"}
            os.execvpe(COMMAND[0], [*COMMAND, *args], env)
        finally:
            os._exit(99)
    data, deadline = b"", time.monotonic() + TIMEOUT_S
    while True:
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(pid, signal.SIGKILL)
            pytest.fail(f"still running after {TIMEOUT_S} s: {data!r}")
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # Linux's way of saying that the other side has closed
            break
        if not chunk:
            break
        data += chunk
        if interrupt_at is not None and interrupt_at in data:
            interrupt_at = None
            os.write(fd, b"\x03")
        if close_at is not None and close_at in data:
            break
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), data


def test_on_a_terminal_one_line_renews_itself_and_the_summary_stays(folder):
    code, data = on_terminal(*TUNE, "--trials", "2", "--no-confirm", cwd=folder)
    screen = Screen(data)
    assert code == 0, data
    assert max(map(len, screen.drawn)) <= COLUMNS
    seen = [line for i, line in enumerate(screen.drawn) if line and line != screen.drawn[i - 1]]
    assert seen[0].startswith("preparing: ")
    assert seen[1] == f"study {STUDY}: 3 knobs; the reference comes first"
    assert seen[2].startswith("reference: ")
    assert [line[:10] for line in seen[3:5]] == ["trial 1/2:", "trial 2/2:"]
    # Nothing of that stays, and the cursor is shown again.
    assert screen.text[0] == f"study      {STUDY} in ./gpt_search.journal"
    assert not any(line.startswith(("trial ", "preparing", "reference:")) for line in screen.text)
    assert data.rfind(b"\x1b[?25h") > data.rfind(b"\x1b[?25l")


def test_ctrl_c_on_a_terminal_shows_how_to_go_on_and_that_works(folder):
    code, data = on_terminal(*TUNE, "--trials", "500", cwd=folder, interrupt_at=b"trial   2/500")
    screen = Screen(data.replace(b"^C", b""))
    assert code == 130, data
    assert screen.text == [
        "stopped; nothing that was finished is lost. Continue with:",
        f"  gpt-search resume {STUDY} --storage ./gpt_search.journal",
    ]
    command = shlex.split(screen.text[1])
    found = json.loads(run(*command[1:], "--trials", "3", "--json", cwd=folder).stdout)
    assert found["trials"] == 3 and found["unfinished"] == 0


def test_a_terminal_that_goes_away_ends_the_study_cleanly(folder):
    code, data = on_terminal(*TUNE, "--trials", "500", cwd=folder, close_at=b"trial   2/500")
    assert code == 129, data
    found = json.loads(run("resume", STUDY, "--trials", "3", "--json", cwd=folder).stdout)
    assert found["trials"] >= 3 and found["unfinished"] == 0


def start(*args, cwd):
    """The command with pipes, marked so that whatever it starts can be found again."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*COMMAND, *args],
        cwd=cwd,
        env=environment() | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, mark


def wait_for(process, text):
    """Reads standard error until a line has `text`; returns everything up to there."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} was never seen: {lines}")


def survivors(mark):
    """Processes that carry the mark; given a moment to be reaped."""
    deadline = time.monotonic() + 10
    while True:
        alive = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process.pid)
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.1)


def test_ctrl_c_ends_everything_and_more_of_them_change_nothing(folder):
    process, mark = start(*TUNE, "--trials", "500", "--builders", "2", "--json", cwd=folder)
    wait_for(process, "trial   1/500")
    # Until it has ended, so that every moment of the end meets one; for less than a user's patience.
    for _ in range(400):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
        if process.poll() is not None:
            break
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert json.loads(stdout) == {
        "error": "interrupted",
        "continue": f"gpt-search resume {STUDY} --storage ./gpt_search.journal",
    }
    assert survivors(mark) == []
    found = json.loads(run("show", STUDY, "--json", cwd=folder).stdout)
    assert found["trials"] >= 1 and found["end"] is None


def test_ctrl_c_during_a_confirmation_leaves_the_study_as_it_was(folder):
    # A reference that optimises nothing: whatever the machine, there is something to confirm.
    from e2e_runs import UNOPTIMISED, foldable

    foldable(folder / "gain.onnx")
    (folder / "slow.py").write_text(UNOPTIMISED)
    command = ("tune", "gain.onnx", "--study", "gain", "--backend", "slow.py:Unoptimised", "--strategy", "full")
    process, mark = start(*command, "--knobs", "-session:graph_level=[disable|basic]", cwd=folder)
    wait_for(process, "confirming: build 1/")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130 and stdout == "" and survivors(mark) == []
    assert stderr.endswith(
        "stopped; nothing that was finished is lost. Continue with:\n"
        "  gpt-search confirm gain --storage ./gpt_search.journal\n"
    )
    again, mark = start("confirm", "gain", "--top", "1", "--rebuilds", "3", cwd=folder)
    wait_for(again, "confirming: build 1/3")
    again.send_signal(signal.SIGINT)
    _, stderr = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 130 and survivors(mark) == []
    assert stderr.endswith("  gpt-search confirm gain --storage ./gpt_search.journal --top 1 --rebuilds 3\n")
    found = json.loads(run("show", "gain", "--json", cwd=folder).stdout)
    assert found["trials"] == 1 and found["confirmations"] == []


def shell(line, cwd):
    done = subprocess.run(
        ["bash", "-c", line], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_through_a_pipe_lines_are_plain_and_a_reader_may_leave(folder):
    gpt_search, tune = shlex.join(COMMAND), shlex.join(TUNE)
    code, out, err = shell(f"{gpt_search} {tune} --trials 1 --no-confirm", folder)
    assert code == 0
    assert "\x1b" not in out + err and "\r" not in out + err
    assert max(map(len, (out + err).splitlines())) <= 80
    for command in (f"show {STUDY} --json", f"{tune} --trials 1 --no-confirm"):
        code, out, err = shell(f"{gpt_search} {command} 2> errors | head -1; exit ${{PIPESTATUS[0]}}", folder)
        assert len(out.splitlines()) == 1
        assert code in (0, 141), (command, code)  # 0 where all of it fitted into the pipe
        assert "rror" not in (folder / "errors").read_text()
    # The progress is what the reader leaves: the run ends, quietly, and can be continued.
    code, out, err = shell(f"{gpt_search} {tune} --trials 3 2>&1 >/dev/null | head -1; exit ${{PIPESTATUS[0]}}", folder)
    assert code == 141 and out == f"study {STUDY}: 3 knobs; going on where it stopped\n" and err == ""
    assert json.loads(run("resume", STUDY, "--trials", "3", "--json", cwd=folder).stdout)["trials"] == 3
