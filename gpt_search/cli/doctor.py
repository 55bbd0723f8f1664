"""`gpt-search doctor`: what is installed, what works on this machine, and why the rest does not."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from gpt_search.cli.common import json_option, output_width, print_json, print_wrapped

_PROBE_TIMEOUT_S = 20.0


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Report what is installed, what each backend can do here, and what is in the way.

    Nothing is changed; attach the output of `gpt-search doctor --json` to a bug report.
    """
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "python": _python,
        "packages": _packages,
        "backends": _backends,
        "cpu": _cpu,
        "disk": _disk,
        "workers": _workers,
        "gpus": _gpus,
    }
    report = {name: read() for name, read in sections.items()}
    if as_json:
        print_json(report)
        return
    for name, content in report.items():
        _print_section(name, content)


# -- what is looked at -----------------------------------------------------------------------
def _python() -> dict[str, Any]:
    from gpt_search import __version__

    return {
        "gpt-search": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "executable": sys.executable,
    }


def _packages() -> dict[str, Any]:
    """Version of every package that gpt-search asks for, by what needs it ("" = always)."""
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        declared = [Requirement(r) for r in metadata.requires("gpt-search") or []]
    except metadata.PackageNotFoundError:
        return {"gpt-search": {"state": "not installed: running from a folder; `pip install -e .` installs it"}}
    found: dict[str, Any] = {}
    for requirement in declared:
        extra = next(
            (e for e in ("tensorrt", "rtx", "xla", "dashboard", "dev") if _needed_by(requirement.marker, e)), ""
        )
        if extra == "dev":
            continue
        entry: dict[str, Any] = {"needs": str(requirement.specifier), "extra": extra}
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            entry |= {"version": None, "state": "not installed" if extra else "missing: pip install it"}
        else:
            fits = requirement.specifier.contains(version, prereleases=True)
            entry |= {"version": version, "state": "ok" if fits else f"too old or too new: needs {entry['needs']}"}
        found[requirement.name] = entry
    return found


def _needed_by(marker: Any, extra: str) -> bool:
    """True when a requirement's marker holds with that extra and not without."""
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _backends() -> dict[str, Any]:
    """Every backend: usable or why not and what to install; what it can do; whether its knobs are known here."""
    from gpt_search.backends.registry import availability, backend_names, load_backend
    from gpt_search.domain.errors import InputError

    found: dict[str, Any] = {}
    for name in backend_names():
        why_not = availability(name)
        if why_not is not None:
            found[name] = {"usable": False, "why_not": why_not}
            continue
        entry: dict[str, Any] = {"usable": True}
        found[name] = entry
        try:
            backend = load_backend(name)
            can = backend.capabilities
            entry["environment"] = dict(backend.environment())
            entry["knobs"] = len(backend.knob_database())
            why_only_build = getattr(backend, "cannot_run", lambda: None)()
            if why_only_build is not None:
                entry["cannot_run"] = why_only_build
        except InputError as error:
            found[name] = {"usable": False, "why_not": str(error)}
            continue
        except Exception as error:  # a broken installation is what doctor is there to report
            found[name] = {"usable": False, "why_not": f"{type(error).__name__}: {error}"}
            continue
        entry |= {
            "fingerprints": can.fingerprint.name.lower(),
            "build_uses_device": can.build_uses_device,
            "reference": can.placement.value,
            "metrics": list(can.metrics),
        }
        if name == "onnxruntime":
            entry["catalogue"] = _onnxruntime_catalogue()
    return found


def _onnxruntime_catalogue() -> dict[str, Any]:
    """ONNX Runtime takes unknown optimizer names in silence: whether it knows those of the catalogue."""
    from gpt_search.backends.onnxruntime_probe import validate_catalogue

    try:
        report = validate_catalogue()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return {"ok": False, "lines": [f"could not be checked: {error}"]}
    return {"ok": report.ok, "lines": report.lines(), **report.to_json()}


def _cpu() -> dict[str, Any]:
    import psutil

    load = os.getloadavg()
    cores = psutil.cpu_count(logical=False)
    governors = {
        text
        for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
        if (text := _read(path)) is not None
    }
    memory = psutil.virtual_memory()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": _cpu_model(),
        "physical_cores": cores,
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable,
        "governor": ", ".join(sorted(governors)) or "not readable here",
        "turbo": _turbo(),
        "load_average": [round(x, 2) for x in load],
        "busy": load[0] > 0.5 * (usable or 1),
        "memory_gb": round(memory.total / 1e9, 1),
        "memory_available_gb": round(memory.available / 1e9, 1),
    }


def _cpu_model() -> str:
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _turbo() -> str:
    no_turbo = _read(Path("/sys/devices/system/cpu/intel_pstate/no_turbo"))
    if no_turbo is not None:
        return "off" if no_turbo == "1" else "on"
    boost = _read(Path("/sys/devices/system/cpu/cpufreq/boost"))
    return "not readable here" if boost is None else ("on" if boost == "1" else "off")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _disk() -> dict[str, Any]:
    import tempfile

    return {
        where: {"path": str(path), "free_gb": round(shutil.disk_usage(path).free / 1e9, 1)}
        for where, path in (("here", Path.cwd()), ("temporary files", Path(tempfile.gettempdir())))
    }


def _workers() -> dict[str, Any]:
    """Whether the three things that worker processes rest on work here; each is tried for real."""
    return {
        "pausing (SIGSTOP)": _tried(_try_pausing),
        "dying with the parent (prctl)": _tried(_try_prctl),
        "memory limit (RLIMIT_DATA)": _tried(_try_memory_limit),
    }


def _tried(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except (OSError, RuntimeError, AttributeError, ImportError, subprocess.SubprocessError) as error:
        return f"does not work: {error}"
    return "works"


def _try_pausing() -> None:
    import psutil

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status) or psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
            raise RuntimeError("the process went on running after SIGSTOP")
    finally:
        child.kill()
        child.wait(_PROBE_TIMEOUT_S)


def _try_prctl() -> None:
    code = (
        "import ctypes, signal\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "now = ctypes.c_int()\n"
        "assert libc.prctl(1, int(signal.SIGKILL), 0, 0, 0) == 0, 'PR_SET_PDEATHSIG was refused'\n"
        "assert libc.prctl(2, ctypes.byref(now), 0, 0, 0) == 0 and now.value == signal.SIGKILL, 'it was ignored'\n"
    )
    _run_probe(code)


def _try_memory_limit() -> None:
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))\n"
        "try:\n"
        "    bytearray(1 << 30)\n"
        "except MemoryError:\n"
        "    raise SystemExit(0)\n"
        "raise SystemExit('1 GiB was allocated under a limit of 0.5 GiB')\n"
    )
    _run_probe(code)


def _run_probe(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")


def _gpus() -> dict[str, Any]:
    """The GPUs that nvidia-smi reports."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"nvidia": "no GPU found (nvidia-smi is not installed)"}
    fields = ["name", "driver_version", "compute_cap", "memory.total", "persistence_mode"]
    command = [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return {"nvidia": f"nvidia-smi failed: {error}"}
    if done.returncode:
        return {"nvidia": f"nvidia-smi failed: {(done.stderr or done.stdout).strip()}"}
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    found: dict[str, Any] = {f"gpu {i}": dict(zip(fields, row, strict=False)) for i, row in enumerate(rows)}
    return found | _preflight() if found else {"nvidia": "nvidia-smi lists no GPU"}


def _preflight() -> dict[str, Any]:
    """What stands in the way of steady timing on the GPU that CUDA takes first."""
    try:
        from gpt_search.backends.gpu_preflight import gpu_findings
        from gpt_search.backends.nvml import NvmlError
    except ModuleNotFoundError as error:
        return {"before timing": f"not looked at: {error.name} is not installed (pip install nvidia-ml-py)"}
    try:
        facts, findings = gpu_findings()
    except NvmlError as error:
        return {"before timing": f"not looked at: {error}"}
    told = {f"{f.about}{'' if f.ok else ' (!)'}": f.text for f in findings}
    return {"before timing on": f"{facts.uuid}, {facts.name}"} | told


# -- how it is shown -------------------------------------------------------------------------
def _print_section(title: str, content: Mapping[str, Any]) -> None:
    click.echo(title)
    if title == "packages":
        _print_packages(content)
    elif title == "backends":
        for name, entry in content.items():
            _print_backend(name, entry)
    else:
        _print_facts(content)
    click.echo()


def _print_packages(packages: Mapping[str, Mapping[str, Any]]) -> None:
    width = max(map(len, packages))
    for name, entry in packages.items():
        facts = [entry.get("version"), None if entry["state"] == "ok" else entry["state"]]
        if entry.get("extra"):
            facts.append(f"(extra: {entry['extra']})")
        click.echo(f"  {name:<{width}}  {'  '.join(fact for fact in facts if fact)}")


def _print_backend(name: str, entry: Mapping[str, Any]) -> None:
    if not entry["usable"]:
        print_wrapped(f"not usable here: {entry['why_not']}", first=f"  {name}: ", indent="      ")
        return
    if "cannot_run" in entry:
        print_wrapped(f"builds, but does not run here, {entry['knobs']} knobs", first=f"  {name}: ", indent="      ")
        print_wrapped(entry["cannot_run"], indent="      ")
    else:
        click.echo(f"  {name}: usable, {entry['knobs']} knobs")
    builds = "building uses the device" if entry["build_uses_device"] else "building leaves the device alone"
    print_wrapped(
        f"fingerprints: {entry['fingerprints']}; times {', '.join(entry['metrics'])}; {builds}; "
        f"reference: {entry['reference']}",
        indent="      ",
    )
    if "catalogue" in entry:
        for line in entry["catalogue"]["lines"]:
            print_wrapped(line, first="      knobs: ", indent="        ")
    for key, value in entry["environment"].items():
        print_wrapped(f"{key}: {value}", indent="      ")


def _print_facts(facts: Mapping[str, Any]) -> None:
    for key, value in facts.items():
        label = key if " " in key else key.replace("_", " ")
        if isinstance(value, Mapping):
            value = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        print_wrapped(f"{label}: {value}", first="  ", indent="      ", width=min(output_width(), 100))
