"""`auxtap config`: which settings hold, and why."""

from typing import Annotated

import typer

from auxtap.core.errors import UsageError


def config(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]", help="Show every option of this command.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show what is left at its default as well.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the settings as JSON.")] = False,
) -> None:
    """Show which settings hold and why: environment, auxtap.toml, default.

    --port of auxtap serve is AUXTAP_SERVE_PORT in the environment and port in [serve] of auxtap.toml, which lies here,
    in ~/.config/auxtap, or where AUXTAP_CONFIG says. A flag goes before all of them.
    """
    from auxtap.commands import settings
    from auxtap.commands.views import config_view

    group = context.find_root().command
    path = settings.find_file()
    chosen = settings.choose(group, settings.read_settings(path, group))
    if command:
        name = " ".join(command)
        chosen = [each for each in chosen if each.command == name]
        if not chosen:
            raise UsageError(f"no command {name!r} with settings", hint="run auxtap --help")
    elif not everything:
        chosen = [each for each in chosen if each.origin != "default" or not each.command]
    rows = [config_view.SettingRow(each.command, each.option, each.value, each.origin) for each in chosen]
    config_view.show_settings(None if path is None else str(path), rows, as_json=json_output)
