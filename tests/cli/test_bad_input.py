"""Every mistake is one clear line on standard error, exit code 2, and leaves everything as it was."""

import functools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import gpt_search.run.setup
from gpt_search.cli.main import _COMMANDS, LazyGroup, cli
from gpt_search.execution.describe import describe_backend

KNOBS = ("--knobs", "-opt:GeluFusionL1=[*] -session:intra_threads=1", "--strategy", "full")
FILES = (*KNOBS, "--reference", "files", "--golden")
FLOAT, STRING = TensorProto.FLOAT, TensorProto.STRING
GOLDEN = "gpt_search.records/golden/"


def model(path, op="Relu", shape=(1, 8), kind=FLOAT, before=True):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"])] if before else []
    nodes.append(helper.make_node(op, ["h" if before else "x"], ["y"]))
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(weight, "w")] if before else [],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def write_models(folder):
    model(folder / "m.onnx")
    model(folder / "open.onnx", shape=("batch", 8))
    model(folder / "text.onnx", op="StringNormalizer", shape=(2,), kind=STRING, before=False)
    model(folder / "unknown_op.onnx", op="NoSuchOperator")
    (folder / "notes.onnx").write_text("remember the milk\n")
    (folder / "half.onnx").write_bytes((folder / "m.onnx").read_bytes()[:150])
    (folder / "empty.onnx").touch()
    (folder / "inside").mkdir()
    large = onnx.load(str(folder / "m.onnx"))
    onnx.save(large, str(folder / "inside/large.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "alone.onnx").write_bytes((folder / "inside/large.onnx").read_bytes())
    for name, location in (("escapes", "../secret.bin"), ("absolute", "/etc/passwd"), ("short", "short.bin")):
        moved = onnx.load(str(folder / "inside/large.onnx"), load_external_data=False)
        moved.graph.initializer[0].external_data[0].value = location
        (folder / "inside" / f"{name}.onnx").write_bytes(moved.SerializeToString())
    (folder / "inside/short.bin").write_bytes(b"123")
    (folder / "secret.bin").write_bytes(bytes(256))


def write_golden(folder):
    x, y = np.ones((1, 8), np.float32), np.ones((1, 8), np.float32)

    def npz(name, **entries):
        np.savez(folder / f"{name}.npz", **{k.replace("__", "/"): v for k, v in entries.items()})

    npz("nan", inputs__x=x, outputs__y=y * np.nan)
    npz("shape", inputs__x=x[:, :5], outputs__y=y)
    npz("type", inputs__x=x.astype(np.float64), outputs__y=y)
    npz("no_output", inputs__x=x)
    npz("no_input", outputs__y=y)
    npz("other_name", inputs__x=x, outputs__z=y)
    npz("bare", x=x)
    npz("wrong", inputs__x=x, outputs__y=y)
    (folder / "torn.npz").write_bytes((folder / "wrong.npz").read_bytes()[:90])
    (folder / "raw/inputs").mkdir(parents=True)
    (folder / "raw/outputs").mkdir()
    x.tofile(folder / "raw/inputs/x.bin")
    y[:, :3].tofile(folder / "raw/outputs/y.bin")


@pytest.fixture(autouse=True, scope="module")
def described_once():
    """A backend is described in a process of its own, which takes a second: once is enough here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt_search.run.setup, "describe_backend", functools.cache(describe_backend))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models, golden data, files that are no studies, and one finished study `m-full-0`."""
    path = tmp_path_factory.mktemp("bad")
    write_models(path)
    write_golden(path)
    (path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (path / "notes.txt").write_text("not\nyours\n")
    (path / "folder").mkdir()
    before = Path.cwd()
    os.chdir(path)
    try:
        result = run("tune", "m.onnx", *KNOBS, "--trials", "1", "--no-confirm")
        assert result.exit_code == 0, result.output
        yield path
    finally:
        os.chdir(before)


def run(*args):
    return CliRunner().invoke(cli, list(args), prog_name="gpt-search")


def content(path):
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


def refused(folder, *args, leaves_golden=False):
    """The one line of an error, without `error: `; checks everything else there is to it."""
    before = content(folder)
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    message = result.stderr.removeprefix("error: ").removesuffix("\n")
    as_json = run(*args, "--json")
    assert as_json.exit_code == 2 and as_json.stderr == ""
    assert json.loads(as_json.stdout) == {"error": message}
    after = content(folder)
    if leaves_golden:  # made from the same model, it serves the corrected command; whole or not at all
        after = {p: c for p, c in after.items() if p in before or not p.startswith(GOLDEN)}
    assert after == before
    return message


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("mm.onnx",), ["there is no file", "mm.onnx", "did you mean 'm.onnx'?"]),
        (("nowhere/m.onnx",), ["there is no file", "nowhere/m.onnx"]),
        (("folder",), ["is a folder; give the .onnx file in it"]),
        (("notes.onnx",), ["notes.onnx is not an ONNX model, or is damaged"]),
        (("half.onnx",), ["half.onnx is not an ONNX model, or is damaged"]),
        (("empty.onnx",), ["empty.onnx is not an ONNX model, or is damaged"]),
        (("picture.png",), ["picture.png is not an ONNX model"]),
        (("alone.onnx",), ["alone.onnx needs the weight file w.bin", "missing"]),
        (("inside/escapes.onnx",), ["weight 'w'", "outside the model's folder (../secret.bin)"]),
        (("inside/absolute.onnx",), ["weight 'w'", "outside the model's folder (/etc/passwd)"]),
        (("inside/short.onnx",), ["short.bin is damaged: 3 bytes", "needs 256"]),
        (("open.onnx",), ["input 'x'", "open dimensions 0 (batch)", "--shape x=1x8"]),
        (("open.onnx", "--shape", "z=1x8"), ["--shape names input 'z'", "inputs: x"]),
        (("open.onnx", "--shape", "x=8"), ["--shape x=8 has rank 1", "rank 2"]),
        (("open.onnx", "--shape", "x=1x9"), ["dimension 1 is fixed at 8"]),
        (("open.onnx", "--shape", "x=ax8"), ["'x=ax8' is not of the form INPUT=1x128"]),
        (("open.onnx", "--shape", "x=0x8"), ["dimension of 0"]),
        (("open.onnx", "--shape", "x=1x8", "--shape", "x=1x8"), ["twice"]),
        (("text.onnx",), ["input 'x' is text", "--reference files"]),
        (("text.onnx", "--reference", "default-engine"), ["input 'x' is text", "--reference files"]),
        (("unknown_op.onnx",), ["unknown_op.onnx cannot be run", "NoSuchOperator"]),
        (("m.onnx", "--tolerance", "z=0.1"), ["the model has no output 'z'", "outputs are y"]),
    ],
)
def test_models(folder, args, parts):
    message = refused(folder, "tune", *args, *KNOBS)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("knobs", "parts"),
    [
        ("-opt:GeluFusionL9=[*]", ["column 2", "unknown knob 'opt:GeluFusionL9'", "did you mean 'opt:GeluFusionL"]),
        ("-opt:GeluFusionL1=[on|of]", ["column 23", "'of' is not among on|off", "did you mean 'off'?"]),
        ("-opt:GeluFusionL1=on opt:x=on", ["column 22", "starts with '-'"]),
        ("-opt:GeluFusionL1=[on|off", ["column"]),
        ("-opt:GeluFusionL1=[*] -opt:GeluFusionL1=on", ["column 23", "already named", "at column 1"]),
        ("", ["names no knob", "gpt-search knobs"]),
        ("@missing.txt", ["column 1", "cannot read the expression file 'missing.txt'"]),
    ],
)
def test_expressions(folder, knobs, parts):
    message = refused(folder, "tune", "m.onnx", "--knobs", knobs)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--strategy", "tpee"), ["unknown strategy 'tpee'", "did you mean 'tpe'?", "sparse_random"]),
        (("--strategy", "sparse_random:meen=3"), ["no option 'meen'", "did you mean 'mean'?"]),
        (("--strategy", "sparse_random:mean=many"), ["mean", "'many'"]),
        (("--strategy", "nowhere.py:Mine"), ["nowhere.py"]),
        (("--backend", "onnxruntme"), ["unknown backend 'onnxruntme'", "did you mean 'onnxruntime'?"]),
        (("--backend", "tensorrt"), ["TensorRT cannot be used here", "pip install 'tensorrt-cu13>=11.1'"]),
        (("--backend", "onnxruntime:x=1"), ["takes no options"]),
        (("--metric", "linf"), ["'linf' is not one of l0, l1, l2, lInf, cos", "did you mean 'lInf'?"]),
        (("--reference", "file"), ["'file' is not one of", "did you mean 'files'?"]),
        (("--tolerance", "-1"), ["--tolerance -1", "positive"]),
        (("--tolerance", "abc"), ["'abc' is not a positive, finite number"]),
        (("--tolerance", "nan"), ["positive, finite"]),
        (("--tolerance", "1", "--tolerance", "2"), ["already given"]),
        (("--seed", "-1"), ["'--seed'", "-1 is too small; it must be 0 or more"]),
        (("--seed", "x"), ["'--seed'", "'x' is not a whole number"]),
        (("--trials", "-1"), ["'--trials'", "-1 is too small"]),
        (("--trials", "1.5"), ["'--trials'", "'1.5' is not a whole number"]),
        (("--builds", "-1"), ["'--builds'", "-1 is too small"]),
        (("--builders", "0"), ["'--builders'", "0 is too small; it must be 1 or more"]),
        (("--builders", "100000"), ["'--builders'", "100000 is too large; it must be 256 or less"]),
        (("--seconds", "-1"), ["'--seconds'", "-1 is too small"]),
        (("--seconds", "inf"), ["'--seconds'", "'inf' is not a finite number"]),
        (("--timeout-build", "0"), ["'--timeout-build'", "0 is too small; it must be more than 0"]),
        (("--timeout-run", "nan"), ["'--timeout-run'", "'nan' is not a finite number"]),
        (("--memory-limit", "-2"), ["'--memory-limit'", "-2 is too small"]),
        (("--reference", "files"), ["--reference files needs --golden PATH"]),
        (("--reference", "default-engine", "--golden", "m.onnx"), ["--golden has no meaning"]),
        (("--golden", "missing.onnx"), ["missing.onnx", "no such float32 model"]),
        (("--golden", "notes.onnx"), ["notes.onnx is not an ONNX model"]),
        (("--study", ""), ["study name is empty"]),
        (("extra",), ["extra"]),
    ],
)
def test_options(folder, args, parts):
    message = refused(folder, "tune", "m.onnx", *KNOBS, *args)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("golden", "parts"),
    [
        ("missing.npz", ["--golden missing.npz: no such file or folder"]),
        ("nan.npz", ["nan.npz", "output 'y' holds NaN or infinity in 8 of 8"]),
        ("shape.npz", ["shape.npz: input 'x' has shape 1x5, expected 1x8"]),
        ("type.npz", ["input 'x' is of type float64, the model's is float32"]),
        ("no_output.npz", ["has no reference outputs"]),
        ("no_input.npz", ["input 'x' is missing"]),
        ("other_name.npz", ["output 'y' is missing; it has z"]),
        ("bare.npz", ["entry 'x' is neither 'inputs/NAME' nor 'outputs/NAME'"]),
        ("torn.npz", ["torn.npz is damaged, or is not an .npz file"]),
        ("picture.png", ["picture.png is damaged, or is not an .npz file"]),
        ("folder", ["no golden pairs there", "inputs/NAME.bin"]),
        ("raw", ["y.bin: 12 bytes", "takes 32 bytes"]),
    ],
)
def test_golden_files(folder, golden, parts):
    message = refused(folder, "tune", "m.onnx", *FILES, golden)
    assert all(part in message for part in parts), message
    assert "pickle.load" not in message


@pytest.mark.parametrize("command", ["tune", "show", "resume", "confirm", "export"])
@pytest.mark.parametrize(
    ("storage", "parts"),
    [
        ("picture.png", ["picture.png is not a study database", "left untouched"]),
        ("notes.txt", ["notes.txt is not a study database", "left untouched"]),
        ("folder", ["folder is a folder"]),
        ("nowhere/x.journal", ["the folder nowhere does not exist"]),
        ("/dev/null", ["not a regular file"]),
        ("sqlit:///x.db", ["unknown storage scheme 'sqlit'", "did you mean 'sqlite'?"]),
        ("sqlite://", ["memory only"]),
        ("sqlite:///picture.png", ["picture.png is not an SQLite database", "left untouched"]),
        ("sqlite:///gpt_search.journal", ["is a journal file: use --storage gpt_search.journal"]),
    ],
)
def test_storage(folder, command, storage, parts):
    words = {"tune": ("m.onnx", *KNOBS), "export": ("m-full-0", "out", "--as", "route")}.get(command, ("m-full-0",))
    message = refused(folder, command, *words, "--storage", storage)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("words", [("show",), ("resume",), ("confirm",), ("export", "out", "--as", "route")])
def test_studies_that_are_not_there(folder, words):
    command, *rest = words
    near = refused(folder, command, "m-fll-0", *rest)
    assert "no study 'm-fll-0'" in near and "did you mean 'm-full-0'?" in near
    assert "(it has: m-full-0)" in refused(folder, command, "xyzzy", *rest)
    none = refused(folder, command, "m-full-0", *rest, "--storage", "new.journal")
    assert "there is no study database at new.journal" in none


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("export", "m-full-0", "notes.txt", "--as", "route"), ["notes.txt exists already"]),
        (("export", "m-full-0", "folder", "--as", "record"), ["folder is a folder; give the name of the file"]),
        (("export", "m-full-0", ".", "--as", "engine"), [". is a folder"]),
        (("export", "m-full-0", "nowhere/x", "--as", "route"), ["cannot write nowhere/x", "no folder nowhere"]),
        (("export", "m-full-0", "notes.txt/x", "--as", "engine"), ["cannot write notes.txt/x", "no folder notes.txt"]),
        (("rejudge", "m-full-0", "--study-out=-x", "--tolerance", "0.5"), ["'-x' starts with '-'"]),
        (("rejudge", "m-full-0", "--study-out=a\nb", "--tolerance", "0.5"), ["'a\\nb' has a line break"]),
        (("show", "m-full-0", "--storage", "."), [". is a folder; --storage takes"]),
        (("export", "m-full-0", "x", "--as", "rout"), ["'rout' is not one of", "did you mean 'route'?"]),
        (("export", "m-full-0", "x"), ["Missing option '--as'"]),
        (("export", "m-full-0", "--as", "route"), ["--as route needs OUT"]),
        (("confirm", "m-full-0", "--top", "0"), ["'--top'", "must be 1 or more"]),
        (("confirm", "m-full-0", "--rebuilds", "x"), ["'--rebuilds'", "'x' is not a whole number"]),
        (("show", "m-full-0", "--top", "-3"), ["'--top'", "must be 1 or more"]),
        (("resume", "m-full-0", "--trials", "-1"), ["'--trials'", "must be 0 or more"]),
        (("resume",), ["Missing argument 'STUDY'"]),
        (("tune",), ["Missing argument 'MODEL'"]),
        (("tunee", "m.onnx"), ["there is no command 'tunee'", "did you mean 'tune'?"]),
        (("toon", "m.onnx"), ["there is no command 'toon'; commands are tune, resume"]),
    ],
)
def test_other_commands(folder, args, parts):
    message = refused(folder, *args)
    assert all(part in message for part in parts), message


def test_a_study_with_other_settings_is_refused_with_the_differences(folder):
    message = refused(
        *(folder, "tune", "m.onnx", "--knobs", "-opt:GeluFusionL2=[*]", "--strategy", "full", "--metric", "lInf"),
        *("--timeout-run", "7"),
        leaves_golden=True,
    )
    assert "'m-full-0'" in message and "exists with other settings" in message
    for part in (
        "space.opt:GeluFusionL1: stored on|off",
        'tolerance.metric: stored "cos", now "lInf"',
        "limits.timeout_run_s: stored 60.0, now 7.0",
        "`gpt-search resume m-full-0 --storage ./gpt_search.journal`",
    ):
        assert part in message, message
    other = refused(folder, "tune", "open.onnx", "--shape", "x=1x8", *KNOBS, "--study", "m-full-0", leaves_golden=True)
    assert "workload.digest" in other


def test_a_tolerance_that_the_reference_misses_and_the_corrected_command(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ("tune", str(folder / "m.onnx"), *FILES, str(folder / "wrong.npz"), "--metric", "lInf", "--trials", "0")
    for _ in range(2):
        result = run(*command, "--no-confirm")
        assert result.exit_code == 2 and result.stdout == ""
        progress, error = result.stderr.splitlines()
        assert progress == "study m-full-0: 1 knob; the reference comes first"
        assert error.startswith("error: not even the reference route meets the tolerance: output 'y' (golden pair 0) ")
        assert "has lInf loss " in error and "the tolerance is 0.01" in error
        flag = error.partition("use --tolerance ")[2].partition(",")[0]
        assert run("show", "m-full-0").exit_code == 2  # the name is free
    assert flag.startswith("y=")
    result = run(*command, "--no-confirm", "--tolerance", flag, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["reference_accuracy"]["tolerance"] == float(flag[2:])


def test_a_reference_that_cannot_be_built(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("tune", str(folder / "unknown_op.onnx"), *FILES, str(folder / "wrong.npz"))
    assert result.exit_code == 2 and "nan" not in result.stderr.splitlines()[1]
    assert result.stderr.splitlines()[-1].startswith("error: the reference route cannot be measured (BUILD_ERROR): ")
    assert "NoSuchOperator" in result.stderr and run("show", "unknown_op-full-0").exit_code == 2


def options():
    for name in _COMMANDS:
        command = LazyGroup.get_command(cli, click.Context(cli), name)
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--"):
                    yield pytest.param(name, option, id=f"{name} {option}")


@pytest.mark.parametrize(("command", "option"), list(options()))
def test_a_typo_in_any_option_is_answered_with_that_option(command, option):
    middle = len(option) // 2 + 1
    typo = option[: middle - 1] + option[middle] + option[middle - 1] + option[middle + 1 :] if len(option) > 4 else ""
    if not typo or typo == option:
        typo = option + "z"
    result = run(command, typo, "1")
    assert result.exit_code == 2 and result.stdout == "" and result.stderr.count("\n") == 1
    assert f"there is no option {typo!r}; did you mean {option!r}?" in result.stderr


EXACT = {
    "tune": "knobs strategy trials seconds builds seed backend metric tolerance reference golden shape storage study "
    "builders timeout-build timeout-run memory-limit confirm no-confirm json strict-trtexec time-infeasible",
    "resume": "storage json",
    "show": "storage json",
    "confirm": "storage top rebuilds json",
    "export": "storage as json",
    "plan": "knobs database backend strategy limit json",
    "knobs": "backend json",
    "strategies": "json",
    "workload": "json",
    "doctor": "json",
}


@pytest.mark.parametrize("name", EXACT)
def test_the_promised_options_exist_and_are_in_the_help(name):
    command = LazyGroup.get_command(cli, click.Context(cli), name)
    there = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    wanted = {f"--{option}" for option in EXACT[name].split()}
    assert wanted <= there
    text = run(name, "--help").stdout
    assert all(option in text for option in wanted)
    assert max(map(len, text.splitlines())) <= 80
    assert all(p.help for p in command.params if isinstance(p, click.Option))


def limited(size, *args, cwd):
    """`gpt-search ARGS` in a process that may not write more than `size` bytes into a file: a full disk."""
    return subprocess.run(
        [sys.executable, "-m", "gpt_search.cli.main", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        # Python 3.11 may leave a compiled module that is cut at the limit, for everyone to stumble over.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )


@pytest.mark.parametrize("size", [0, 3_000, 50_000])
def test_a_full_disk_loses_nothing_and_the_same_command_goes_on(folder, tmp_path, monkeypatch, size):
    monkeypatch.chdir(tmp_path)
    command = ("tune", str(folder / "m.onnx"), *KNOBS, "--trials", "1", "--no-confirm")
    done = limited(size, *command, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "", (done.stdout, done.stderr)
    *progress, error = done.stderr.splitlines()
    assert error.startswith("error: ") and all(line.startswith("study ") for line in progress)
    assert "free some space" in error or "File too large" in error
    left = {p for p, c in content(tmp_path).items() if c}
    assert all(p.endswith((".journal", ".jsonl", ".npz")) for p in left), left  # no half or temporary files
    again = run(*command, "--json")
    assert again.exit_code == 0 and json.loads(again.stdout)["trials"] == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs users")
def test_a_folder_that_may_not_be_written_in(tmp_path, monkeypatch, folder):
    closed = tmp_path / "closed"
    closed.mkdir()
    if os.geteuid() == 0:  # root may write everywhere: the system's answer for anybody else
        monkeypatch.setattr(os, "access", lambda path, mode, **_: Path(path) != closed)
    else:
        closed.chmod(0o555)
    result = run("tune", str(folder / "m.onnx"), *KNOBS, "--storage", str(closed / "s.journal"))
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "may not be written in" in result.stderr and list(closed.iterdir()) == []
