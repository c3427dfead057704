"""`auxtap engine`: the environments in which SGLang serves on a CPU."""

from pathlib import Path
from typing import Annotated

import typer

from auxtap.commands.context import cache_layout

engine_app = typer.Typer(
    name="engine", no_args_is_help=True, help="Set up the environments in which SGLang serves on a CPU."
)


@engine_app.command()
def setup(
    release: Annotated[str, typer.Option(help="SGLang release the environment serves.")] = "0.5.9",
    python: Annotated[
        Path | None, typer.Option(help="Python that makes the environment. [default: the one that runs auxtap]")
    ] = None,
    torch_index: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Package index for torch, such as one of CPU builds. [default: pip's own]"),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Begin from nothing.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make, repair or find the environment that serves a release on a CPU."""
    from auxtap.commands.views import console, engine_view
    from auxtap.serving.engine_env import set_up_engine

    with engine_view.setup_progress() as progress:
        environment = set_up_engine(
            release, cache_layout(), python=python, torch_index=torch_index, rebuild=rebuild, progress=progress
        )
    if json_output:
        console.emit_json(engine_view.environment_record(environment))
    else:
        engine_view.show_environment(environment)
