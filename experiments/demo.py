"""The main job, end to end: tune two models, confirm what was found, draw two figures. Run by `make demo`.

The first model is a transformer encoder with seeded weights, for which a gain within the stated
tolerance exists on the CPU. The second is a real public model (magika's file-type classifier, from its
PyPI package); the answer is whatever the tool finds, often "keep the default".
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
import time
from pathlib import Path

OUT = Path("demo")
STORAGE = OUT / "gpt_search.journal"

# What matters for a transformer encoder on the CPU: how weights are quantised, which fusions happen, memory.
# Threads and spinning stay out: on a shared machine they only measure the neighbours.
BERT_KNOBS = " ".join(
    [
        "-model:quantize_dynamic=[off|u8|s8|s8_reduced|s8_per_channel]",
        "-opt:SkipLayerNormFusion=[*] -opt:BiasSkipLayerNormFusion=[*] -opt:LayerNormFusionL2=[*]",
        "-opt:AttentionFusion=[*] -opt:BiasGeluFusion=[*] -opt:GeluFusionL2=[*] -opt:GemmActivationFusion=[*]",
        "-opt:ConstantFolding=[*] -session:gelu_approximation=[*] -session:graph_level=[all|extended|basic]",
        "-session:prepacking=[*] -session:mem_pattern=[*] -session:cpu_arena=[*]",
        "-session:dynamic_block_base=[0|4] -input:free_dims=[*]",
    ]
)


def run(*arguments: str) -> None:
    """Shows a command, and runs it. Ends the demo with its exit code when it fails."""
    shown = " ".join(shlex.quote(a) for a in arguments)
    print(f"\n$ gpt-search {shown}", flush=True)
    done = subprocess.run([sys.executable, "-m", "gpt_search.cli.main", *arguments], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def public_model() -> Path:
    """The model file inside the installed package."""
    from gpt_search.workloads.catalogue import public_model as find

    return find("magika").model


def draw(study: str) -> list[Path]:
    """Best-so-far against trials, with the confirmed speed-up beside it; and the knobs' importance."""
    from gpt_search.analysis.curves import history_curve
    from gpt_search.analysis.figures import best_so_far, importance, importance_height, new_figure, save_figure
    from gpt_search.analysis.importance import knob_importance
    from gpt_search.run.show import history_of
    from gpt_search.store.study import StudyStore

    with StudyStore.read(STORAGE, study) as store:
        history = history_of(store, store.restore())
        confirmations = store.confirmations()
    speedup = confirmations[-1]["speedup"] if confirmations else None
    figure, axes = new_figure()
    confirmed = None if speedup is None else (speedup["low"], speedup["estimate"], speedup["high"])
    best_so_far(history_curve(history), axes, confirmed=confirmed)
    written = save_figure(figure, OUT / "best_so_far")
    table = knob_importance(history)
    figure, axes = new_figure(height=importance_height(table))
    importance(table, axes)
    return written + save_figure(figure, OUT / "importance")


def main() -> None:
    """Runs the demo; studies that an earlier one left are continued, which takes no time once they are done."""
    began = time.monotonic()
    OUT.mkdir(exist_ok=True)
    model = OUT / "bert.onnx"
    run("workload", "bert", str(model))
    common = ["--storage", str(STORAGE), "--metric", "cos", "--tolerance", "0.001"]
    run(
        *("tune", str(model), "--shape", "input_ids=1x32", "--knobs", BERT_KNOBS, "--strategy", "tpe"),
        *("--seconds", "60", "--study", "bert", *common),
    )
    run(
        *("tune", str(public_model()), "--shape", "bytes=1x2048", "--knobs", "-opt:*=[*]", "--strategy", "fast"),
        *("--seconds", "15", "--study", "magika", *common),
    )
    print()
    for path in draw("bert"):
        print(f"wrote {path}")
    print(f"the studies lie in {STORAGE}; look again with: gpt-search show bert --storage {STORAGE}")
    print(f"({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    if importlib.util.find_spec("gpt_search") is None:
        raise SystemExit("gpt_search is not installed in this Python; run `make demo`")
    main()
