"""The commands by name: each is imported when it is called, or when its own help or options are wanted.

`auxtap --help` and an error on the command line then take little longer than Python and typer themselves.
"""

import importlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import typer
import typer.core
import typer.main

from auxtap.commands import settings
from auxtap.commands.context import use_cache


@dataclass(frozen=True)
class Entry:
    """A command's line of help, and where it is below `auxtap.commands` unless both are called as the command is."""

    line: str
    module: str = ""
    attribute: str = ""


MENU = {
    "trace": Entry("Trace where hidden states are captured, how they travel and where they are lost."),
    "patch": Entry("Write and prove the capture patch of an SGLang tree."),
    "verify": Entry("Prove that a patch does what it says and nothing else."),
    "upgrade": Entry("Retrace, regenerate and prove for B, show what changed since A, and give one verdict."),
    "sweep": Entry("Write and prove the patch of many SGLang releases; a sweep of all writes the page."),
    "apply": Entry("Apply the proved capture patch to a git worktree of its own, or to an installed package."),
    "revert": Entry(
        "Remove a worktree that apply made, and its branch; or put a patched package back as it was.", "apply"
    ),
    "engine": Entry("Set up the environments in which SGLang serves on a CPU.", "engine", "engine_app"),
    "serve": Entry("Start a server with the tap on, patched or by plugin; Ctrl-C stops it whole."),
    "canary": Entry("Check a tapped server's states without a reference model; exit 8 when a check fails."),
    "extract": Entry("Extract hidden states into a store; run again, it continues."),
    "preview": Entry("Show a sample: trained tokens, and each state's token beside the token that it is to predict."),
    "export": Entry("Write a store's samples as a trainer's own files; run again, it continues."),
    "check": Entry("Verify every file of a store from its bytes."),
    "inspect": Entry("Look a store through: norms, lengths, masks, duplicates, outliers, slow samples."),
    "status": Entry("Say how far a store is, also while it is written, or what runs on a node."),
    "merge": Entry("Join the stores of shards; their files are linked, or copied where that cannot be."),
    "drain": Entry("Carry parts from this host's spool to a shared folder, checked on the way, until interrupted."),
    "node": Entry("Check nodes that are reached by ssh, and make profiles.", "node", "node_app"),
    "stop": Entry("Stop what auxtap started on a node, and nothing else: extractions, then the server.", "node"),
    "fetch": Entry("Bring a node's store here, compared file by file; run again, it continues."),
    "logs": Entry("Show the log of a node's server.", "node"),
    "doctor": Entry("Say what this machine lacks, for which command, and what to do about it."),
    "config": Entry("Show which settings hold and why: environment, auxtap.toml, default."),
    "demo": Entry("Do the whole job once, on the real SGLang 0.5.9 and tiny models, on the CPU."),
}


class Commands(MutableMapping[str, Any]):
    """The commands of the menu, each made when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = load_command(name, MENU[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*MENU, *self._made]))

    def __len__(self) -> int:
        return len(list(iter(self)))


def load_command(name: str, entry: Entry) -> Any:
    """Import a command and give each of its options its environment variable."""
    module = importlib.import_module(f"auxtap.commands.{entry.module or name}")
    found = getattr(module, entry.attribute or name)
    outer = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    # With a callback, a single command stays one among others.
    outer.callback()(_nothing)
    if isinstance(found, typer.Typer):
        outer.add_typer(found, name=name)
    else:
        outer.command(name)(found)
    group: Any = typer.main.get_command(outer)
    command = group.commands[name]
    for place in settings.options(command, (name,)):
        place.parameter.envvar, place.parameter.show_envvar = place.variable, False
    return command


def _nothing() -> None:
    pass


class MenuGroup(typer.core.TyperGroup):
    """The commands of the menu, with the environment and `auxtap.toml` behind each option."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.commands = Commands()

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Begin a call: options that it does not give come from the environment, then from the file."""
        asks_for_help = {"--help", "-h", "--version"} & set(args)
        # Help must be had with a broken file too.
        found = settings.Settings() if asks_for_help else settings.read_settings(settings.find_file(), self)
        use_cache(found.cache)
        if not asks_for_help:
            from auxtap.commands.fork import use_fork

            use_fork(found.fork)
        return super().make_context(info_name, args, parent, default_map=dict(found.defaults), **extra)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the menu's order."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the menu without importing what is on it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.line) for name, entry in MENU.items()])
