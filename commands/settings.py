"""Where an option's value comes from: the command line, the environment, `auxtap.toml`, the default; in that order.

Every long option of every command can be set: `--port` of `auxtap serve` is `AUXTAP_SERVE_PORT` in the environment and
`port` in the table `[serve]` of the file; `--torch-index` of `auxtap engine setup` is `AUXTAP_ENGINE_SETUP_TORCH_INDEX`
and stands in `[engine.setup]`.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from auxtap.commands.context import FORK_TABLE
from auxtap.core.errors import UsageError

FILE_NAME = "auxtap.toml"
ENV_FILE, ENV_CACHE = "AUXTAP_CONFIG", "AUXTAP_CACHE"
# What is about one call, or belongs to no command.
_NOT_SETTABLE = ("help", "json", "version")


@dataclass(frozen=True)
class Settings:
    """A configuration file that was read; `path` None when there is none. `fork` are names with their kinds."""

    path: Path | None = None
    cache: str | None = None
    fork: Mapping[str, str] = field(default_factory=dict, hash=False)
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class OptionPlace:
    """An option of a command, and where else its value can be said."""

    command: tuple[str, ...]
    key: str
    parameter: Any

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "_".join(["AUXTAP", *self.command, self.key]).upper().replace("-", "_")


@dataclass(frozen=True)
class Chosen:
    """An option's value as it holds without the command line; `origin` says why."""

    command: str
    option: str
    value: Any
    origin: str


def find_file() -> Path | None:
    """Return the configuration file: `AUXTAP_CONFIG`, else `auxtap.toml` here, else the one of this user.

    Raises:
        UsageError: `AUXTAP_CONFIG` names no file.
    """
    named = os.environ.get(ENV_FILE)
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise UsageError(f"{ENV_FILE} names no file: {named}", hint=f"unset {ENV_FILE}, or make that file")
        return path
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    for path in (Path(FILE_NAME), home / "auxtap" / FILE_NAME):
        if path.is_file():
            return path
    return None


def read_settings(path: Path | None, group: Any) -> Settings:
    """Read the file and hold it against the options of the commands of `group`.

    Raises:
        UsageError: it cannot be read, names what there is not, or gives a value that the option does not take.
    """
    if path is None:
        return Settings()
    import tomllib

    try:
        text = path.read_text()
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", hint="auxtap config --help tells what it may hold"
        ) from None
    cache_folder = values.pop("cache", None)
    if cache_folder is not None and (not isinstance(cache_folder, str) or not cache_folder.strip()):
        raise UsageError(f"{path}: cache is no folder", hint='cache = "/path/to/a/folder"')
    fork: Mapping[str, str] = {}
    if FORK_TABLE in values:
        from auxtap.commands.fork import read_fork

        fork = read_fork(path, text, values.pop(FORK_TABLE))
    return Settings(path, cache_folder, fork, _table(path, (), group, values))


def options(group: Any, command: tuple[str, ...] = ()) -> Iterator[OptionPlace]:
    """Yield every option of `command` and of the commands below it that can be set elsewhere."""
    for name, inner in getattr(group, "commands", {}).items():
        yield from options(inner, (*command, name))
    for parameter in group.params if command else ():
        key = option_key(parameter)
        if key is not None:
            yield OptionPlace(command, key, parameter)


def option_key(parameter: Any) -> str | None:
    """Return an option's name in the file; None for what is no option, or cannot be set."""
    names = [name[2:] for name in parameter.opts if name.startswith("--")]
    return names[0] if names and names[0] not in _NOT_SETTABLE else None


def choose(group: Any, settings: Settings) -> list[Chosen]:
    """Return the value of every option as it holds without the command line."""
    chosen = [_choose_cache(settings)]
    for place in options(group):
        table: Any = settings.defaults
        for name in place.command:
            table = table.get(name, {})
        command, option = " ".join(place.command), f"--{place.key}"
        if os.environ.get(place.variable):
            chosen.append(Chosen(command, option, os.environ[place.variable], f"environment {place.variable}"))
        elif place.parameter.name in table:
            chosen.append(Chosen(command, option, table[place.parameter.name], f"file {settings.path}"))
        else:
            chosen.append(Chosen(command, option, _default(place.parameter), "default"))
    return chosen


def _choose_cache(settings: Settings) -> Chosen:
    from auxtap.commands.context import cache_layout

    origin = "default" if settings.cache is None else f"file {settings.path}"
    if ENV_CACHE in os.environ:
        origin = f"environment {ENV_CACHE}"
    return Chosen("", "cache", str(cache_layout().root), origin)


def _default(parameter: Any) -> Any:
    value = parameter.default
    shown = value is None or isinstance(value, bool | int | float | str | list | tuple)
    return value if shown else str(value)


def _table(path: Path, names: tuple[str, ...], group: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a command, or of the commands below it, as the command line's defaults."""
    inner = dict(getattr(group, "commands", {}))
    keys = {key: parameter for parameter in group.params if names and (key := option_key(parameter)) is not None}
    found: dict[str, Any] = {}
    for key, value in values.items():
        place = ".".join([*names, key])
        spelled = key.replace("_", "-")
        if spelled in inner:
            if not isinstance(value, dict):
                raise UsageError(
                    f"{path}: {place} is a command: its options stand in the table [{place}]",
                    hint="auxtap config COMMAND shows its options",
                )
            found[spelled] = _table(path, (*names, spelled), inner[spelled], value)
        elif spelled in keys:
            found[keys[spelled].name] = _checked(path, place, keys[spelled], value)
        else:
            raise UsageError(f"{path}: {place} is not known", hint=_nearest(spelled, names, [*inner, *keys]))
    return found


def _nearest(key: str, names: tuple[str, ...], known: list[str]) -> str:
    from auxtap.node.toml_table import nearest

    meant = nearest(key, known if names else [*known, "cache", FORK_TABLE])
    where = f"[{'.'.join(names)}]" if names else "the file"
    return f"did you mean {meant}?" if meant else f"{where} knows {', '.join(sorted(known))}"


def _checked(path: Path, place: str, parameter: Any, value: Any) -> Any:
    """Return the value when the option takes it."""
    wanted = _wanted(parameter)
    if wanted == "true or false" and not isinstance(value, bool):
        raise UsageError(f"{path}: {place} is true or false, not {value!r}", hint="write true or false, without quotes")
    if wanted == "a list" and not isinstance(value, list):
        raise UsageError(f"{path}: {place} is a list, not {value!r}", hint='write it as ["one", "other"]')
    if wanted == "a value" and (isinstance(value, bool | list | dict)):
        raise UsageError(
            f"{path}: {place} is one value, not {value!r}", hint="auxtap config COMMAND shows what an option holds"
        )
    for item in value if isinstance(value, list) else [value]:
        try:
            parameter.type.convert(str(item) if wanted != "true or false" else item, parameter, None)
        except Exception as error:
            raise UsageError(
                f"{path}: {place}: {getattr(error, 'message', error)}",
                hint="auxtap COMMAND --help says what the option takes",
            ) from None
    return value


def _wanted(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return "true or false"
    return "a list" if getattr(parameter, "multiple", False) or parameter.nargs != 1 else "a value"
