"""How the command line ends: one clear line instead of a traceback, and an exit code that can be relied on.

0: done. 1: something unexpected. 2: bad input. 129, 130, 143: stopped by SIGHUP, Ctrl-C, SIGTERM. 141: whoever read
the output left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

import click

from gpt_search.cli.interrupts import raise_lost
from gpt_search.domain.errors import InputError, StrategyError

BAD_INPUT = 2
UNEXPECTED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141


class ReaderLeft(Exception):
    """Whoever read the standard output closed it: nothing to complain about, as with `| head`."""


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Raises ReaderLeft for a broken pipe: click would turn that into an exit with code 1 of its own."""
    try:
        yield
    except BrokenPipeError:
        raise ReaderLeft from None


class Stopped(Exception):
    """The user, SIGTERM or SIGHUP stopped a run: nothing is wrong, and a command goes on from here.

    command: the command line that does. code: the exit code.
    """

    def __init__(self, command: str, code: int = INTERRUPTED) -> None:
        """See the class."""
        super().__init__(command)
        self.command, self.code = command, code


TRACEBACK_VARIABLE = "GPT_SEARCH_TRACEBACK"

# What click 8.2 and later raise where a group is called without a command; older ones print the help themselves.
_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())

_answers: list[TextIO] = []


def answer_stream() -> TextIO:
    """Where a command's JSON goes: standard output, also while everything else that is printed is kept out of it."""
    return _answers[-1] if _answers else sys.stdout


@contextlib.contextmanager
def _nothing_else_printed(as_json: bool) -> Iterator[None]:
    """With `--json`, what a strategy, a backend or a library prints goes to standard error.

    One line of theirs in front of the object, and no program reads it.
    """
    if not as_json:
        yield
        return
    _answers.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.pop()


def run_guarded(run: Callable[[], Any], args: Sequence[str] | None = None) -> NoReturn:
    """Calls `run` (click's `main` outside standalone mode) and exits with the code that fits.

    args: the command line, by default that of the process: with `--json` in it an error is printed
    as `{"error": "..."}` on standard output, without it as `error: ...` on standard error.
    Where a stopped run can be continued, the command for it is shown, with `--json` under "continue".
    """
    given = list(sys.argv[1:] if args is None else args)
    _open_outputs()
    try:
        with reader_may_leave():
            code = _guarded(run, "--json" in given)
    except ReaderLeft:
        _forget_output()
        code = BROKEN_PIPE
    sys.exit(code)


def _open_outputs() -> None:
    # Python has None for a stream that was closed (`>&-`). Opened first of all, the null device takes its descriptor
    # too, which otherwise the next file would get, the study's say, and with it what a library prints.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115


def _unmasked(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception:
        raise_lost()  # an error that a signal caused gives way to it
        raise


def _guarded(run: Callable[[], Any], as_json: bool) -> int:
    try:
        with _nothing_else_printed(as_json):
            result = _unmasked(run)
        # Not at exit: an error while flushing there would be a traceback of the interpreter's.
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort as stop:
        if isinstance(stop.__cause__, EOFError):
            return _report("the input ended before the answer", as_json, BAD_INPUT)
        return _report("interrupted", as_json, INTERRUPTED)
    except KeyboardInterrupt:
        return _report("interrupted", as_json, INTERRUPTED)
    except Stopped as stop:
        return _stopped(stop, as_json)
    except click.UsageError as error:
        if isinstance(error, _NO_COMMAND):
            # Its message is the whole help, which is no line of an error.
            click.echo(error.format_message(), err=True)
            return BAD_INPUT
        return _report(_usage(error), as_json, BAD_INPUT)
    except click.ClickException as error:
        return _report(error.format_message(), as_json, BAD_INPUT)
    except InputError as error:
        _traceback_if_wanted()
        return _report(str(error), as_json, BAD_INPUT)
    except StrategyError as error:
        _traceback_if_wanted()
        return _report(str(error), as_json, UNEXPECTED)
    except (ReaderLeft, BrokenPipeError):
        raise
    except OSError as error:
        _traceback_if_wanted()
        message = _no_space(error)
        return _unexpected(error, as_json) if message is None else _report(message, as_json, BAD_INPUT)
    except Exception as error:
        _traceback_if_wanted()
        return _unexpected(error, as_json)
    # Outside standalone mode click hands back the code of `ctx.exit(code)`, or what the command returned.
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _usage(error: click.UsageError) -> str:
    """click's message in one line, with the nearest option and where to read more."""
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        params = error.ctx.command.get_params(error.ctx)
        names = [o for p in params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")]
        message = f"there is no option {error.option_name!r}{_meant(error.option_name, names)}"
    message = " ".join(message.split()).rstrip(".")
    return f"{message} (see `{error.ctx.command_path} --help`)" if error.ctx is not None else message


def _meant(given: str, names: Sequence[str]) -> str:
    # Without the dashes, which are alike in any two options and make strangers look close.
    from gpt_search.domain.errors import nearest

    near = nearest(given.lstrip("-"), [name.lstrip("-") for name in names])
    return f"; did you mean '--{near}'?" if near is not None else ""


def _stopped(stop: Stopped, as_json: bool) -> int:
    if not as_json or not _written({"error": "interrupted", "continue": stop.command}):
        with contextlib.suppress(OSError):
            click.echo("stopped; nothing that was finished is lost. Continue with:", err=True)
            click.echo(f"  {stop.command}", err=True)
    return stop.code


def _no_space(error: OSError) -> str | None:
    """What to do where an error says that nothing more can be written; None for any other error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = "a file is larger than this process may write" if error.errno == errno.EFBIG else "the disk is full"
        where = f" ({error.filename})" if error.filename else ""
        return f"{what}{where}; free some space and run the command again"
    if str(error).partition("No usable temporary directory")[1]:  # how tempfile finds a full disk
        return (
            "no folder for temporary files can be written in; free some space, or set TMPDIR to a folder that has any"
        )
    return None


def _unexpected(error: BaseException, as_json: bool) -> int:
    text = " ".join(str(error).split()) or "no message"
    shown = f"{type(error).__name__}: {text}"
    if not os.environ.get(TRACEBACK_VARIABLE):
        shown += f" (unexpected; set {TRACEBACK_VARIABLE}=1 to see where)"
    return _report(shown, as_json, UNEXPECTED)


def _traceback_if_wanted() -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        traceback.print_exc()


def _report(message: str, as_json: bool, code: int) -> int:
    if as_json and _written({"error": message}):
        return code
    with contextlib.suppress(OSError):  # with nowhere left to say it, the exit code still does
        click.echo(_folded(f"error: {message}"), err=True)
    return code


def _folded(message: str) -> str:
    """The message in lines that fit a terminal, cut between words; whole where a file or a program reads it."""
    if not sys.stderr.isatty():
        return message
    import re
    import shutil

    from gpt_search.cli.common import wrapped

    width = max(40, shutil.get_terminal_size((80, 24)).columns)
    # A command stays in one piece, to be copied.
    joined = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\0"), message)
    return wrapped(joined, width).replace("\0", " ")


def _written(data: dict[str, str]) -> bool:
    """Writes JSON to standard output. False where that takes no more (a full disk): it is given up then."""
    import json

    try:
        click.echo(json.dumps(data, ensure_ascii=False))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        _forget_output()
        return False
    return True


def _forget_output() -> None:
    """Points standard output at nothing, so that the interpreter's last flush finds no closed pipe."""
    # Where standard output is not a file (under a test runner) nothing is left to flush.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
