"""`gpt-search workload`: writes one of the built-in models as an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from gpt_search.cli.common import json_option, print_json, print_wrapped


@click.command()
@click.argument("name", required=False)
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option("--option", "pairs", multiple=True, metavar="KEY=VALUE", help="A size or the seed; may be repeated.")
@json_option
def workload(name: str | None, out: Path | None, pairs: Sequence[str], as_json: bool) -> None:
    """Write the built-in model NAME to the ONNX file OUT.

    Without OUT the options of NAME are listed, without NAME the models. An example: gpt-search
    workload bert bert.onnx --option layers=2 --option hidden=128
    """
    if name is None or out is None:
        from gpt_search.domain.errors import InputError

        if pairs:
            raise InputError("--option is given, but no file to write; the form is: gpt-search workload NAME OUT")
        _list(name, as_json)
        return
    _write(name, out, parse_options(pairs), as_json)


def parse_options(pairs: Sequence[str]) -> dict[str, str]:
    """The options of `KEY=VALUE` texts, as text; a dash in a key counts as an underscore.

    Raises InputError for a text without a key or `=`, and for a key given twice.
    """
    from gpt_search.domain.errors import InputError

    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise InputError(f"--option {pair!r} is not of the form KEY=VALUE, as in --option layers=4")
        if key in found:
            raise InputError(f"--option sets {key!r} twice")
        found[key] = value.strip()
    return found


def _write(name: str, out: Path, options: dict[str, str], as_json: bool) -> None:
    from gpt_search.domain.digest import digest_of_file
    from gpt_search.workloads.catalogue import write_workload

    written = write_workload(name, out, **options)
    size = out.stat().st_size
    shapes = {k: "x".join(map(str, v)) for k, v in written.shapes.items()}
    if as_json:
        print_json({"workload": name, "file": str(out), "bytes": size, "sha256": digest_of_file(out), "shapes": shapes})
        return
    click.echo(f"wrote {out} ({size / 1e6:.1f} MB)")
    for input_name, shape in shapes.items():
        click.echo(f"  --shape {input_name}={shape}")


def _list(name: str | None, as_json: bool) -> None:
    from gpt_search.workloads.catalogue import workload_names, workload_options, workload_summary

    names = workload_names() if name is None else [name]
    if as_json:
        found = [
            {
                "name": each,
                "summary": workload_summary(each),
                "options": [{"name": o.name, "default": o.default, "help": o.help} for o in workload_options(each)],
            }
            for each in names
        ]
        print_json({"workloads": found} if name is None else found[0])
        return
    for each in names:
        print_wrapped(f"{each}: {workload_summary(each)}", indent="  ", first="")
        for option in workload_options(each):
            print_wrapped(f"{option.name}={option.default}: {option.help}", first="  ", indent="      ")
