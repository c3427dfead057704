"""How long `auxtap --help` takes, against a bare typer application of two commands.

The two take turns, each as a process of its own; what is compared is the processor time of the quicker half. Ends with
1 when the ratio is above the budget.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BUDGET = 1.3
ROUNDS = 30
BARE = '''
import typer

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def one(name: str = "x") -> None:
    """Do one thing."""


@app.command()
def two(name: str = "x") -> None:
    """Do another."""


app()
'''


def cpu_s(command: list[str]) -> float:
    """Return the processor time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def main() -> None:
    """Measure and judge."""
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder, "bare.py")
        bare.write_text(BARE)
        ours = [sys.executable, "-c", "from auxtap.cli import main; main()", "--help"]
        theirs = [sys.executable, str(bare), "--help"]
        for command in (ours, theirs):
            # Bytecode is written, files are cached.
            cpu_s(command)
        taken = [(cpu_s(ours), cpu_s(theirs)) for _ in range(ROUNDS)]
    quicker = [statistics.fmean(sorted(each)[: ROUNDS // 2]) for each in zip(*taken, strict=True)]
    ratio = quicker[0] / quicker[1]
    sys.stdout.write(
        f"auxtap --help      {quicker[0] * 1000:6.1f} ms of processor time\n"
        f"two bare commands  {quicker[1] * 1000:6.1f} ms\n"
        f"ratio              {ratio:6.2f} (budget {BUDGET})\n"
    )
    sys.exit(0 if ratio <= BUDGET else 1)


if __name__ == "__main__":
    main()
