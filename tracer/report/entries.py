"""The capture sites and stage branches of a file, as data; imports nothing that parses, like `report.py`."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

UNKNOWN = "unknown"

JsonValue = str | int | bool | None
JsonEntry = dict[str, JsonValue]


def _without_none(entry: JsonEntry) -> JsonEntry:
    return {key: value for key, value in entry.items() if value is not None}


@dataclass(frozen=True)
class CaptureSite:
    """One place of the capture pipeline.

    `line` is where the name stands (1-based), `scope` the qualified name of the enclosing function, `value` the
    source of what is assigned or appended, `to` the callee that receives it, `offset` what a setter adds to the
    layer ids it is given. `n_names` counts the NAME tokens that the site accounts for. `condition` is under what
    test a setter's site is reached; `side` whether a capture takes the input or the output of a block, `shift` what
    turns an entry of the layer list into a capture index there; `counts` the locals that hold the number of blocks.
    Of a gather, `callee` is what gathers, `under` says under which settings in words and `asks` holds the names in the
    tests around it; of an append, `copies` says that a gathered copy is taken.
    """

    line: int
    role: str
    scope: str
    name: str
    value: str | None = None
    to: str | None = None
    offset: int | None = None
    note: str | None = None
    code: str = ""
    n_names: int = 1
    condition: str | None = None
    side: str | None = None
    shift: int | None = None
    counts: tuple[str, ...] = ()
    callee: str | None = None
    under: str | None = None
    asks: tuple[str, ...] = ()
    copies: bool = False

    def to_json(self) -> JsonEntry:
        """Return the facts of this site without its source line."""
        return _without_none(
            {
                "line": self.line,
                "role": self.role,
                "scope": self.scope,
                "name": self.name,
                "value": self.value,
                "to": self.to,
                "offset": self.offset,
                "note": self.note,
            }
        )


@dataclass(frozen=True)
class StageBranch:
    """One use of `is_last_rank` or `is_first_rank`, nearly always the test of a branch.

    `form` is `if`, `if_else`, `early_return`, ... (see `roles.FORMS`); `negated` says that the branch runs where
    the property does not hold; `drops_aux` that a stage exit leaves captured states behind; `gathers_final_only` that a
    context-parallel gather of the final state leaves them out.
    """

    line: int
    role: str
    scope: str
    form: str
    negated: bool
    test: str
    places: str | None = None
    returns: str | None = None
    drops_aux: bool | None = None
    note: str | None = None
    code: str = ""
    gathers_final_only: bool = False

    def to_json(self) -> JsonEntry:
        """Return the facts of this branch without its source line."""
        return _without_none(
            {
                "line": self.line,
                "role": self.role,
                "scope": self.scope,
                "form": self.form,
                "negated": self.negated,
                "test": self.test,
                "places": self.places,
                "returns": self.returns,
                "drops_aux": self.drops_aux,
                "note": self.note,
            }
        )


@dataclass(frozen=True)
class Mentions:
    """How often the names occur where they do nothing: counted apart from the sites."""

    imports: int = 0
    strings: int = 0
    comments: int = 0


@dataclass(frozen=True)
class FileTrace:
    """Every site and branch of one file, in line order."""

    file: PurePosixPath
    capture_sites: tuple[CaptureSite, ...]
    stage_branches: tuple[StageBranch, ...]
    mentions: Mentions = field(default_factory=Mentions)

    @property
    def entries(self) -> tuple[CaptureSite | StageBranch, ...]:
        """The sites, then the branches."""
        return (*self.capture_sites, *self.stage_branches)

    def to_json(self, release: str) -> dict[str, object]:
        """Return the form of the golden files."""
        return {
            "release": release,
            "file": str(self.file),
            "capture_sites": [site.to_json() for site in self.capture_sites],
            "stage_branches": [branch.to_json() for branch in self.stage_branches],
        }

    def code_by_line(self) -> dict[str, str]:
        """Return the source line of every site and branch under its line number."""
        lines = {site.line: site.code for site in self.capture_sites}
        lines |= {branch.line: branch.code for branch in self.stage_branches}
        return {str(line): lines[line] for line in sorted(lines)}

    @property
    def n_unknown(self) -> int:
        """Count the sites and branches whose role was not recognised."""
        return len(self._unknown())

    @property
    def unknown_scopes(self) -> tuple[str, ...]:
        """Where the unrecognised sites and branches stand, each scope once."""
        return tuple(dict.fromkeys(self._unknown()))

    def _unknown(self) -> list[str]:
        sites = [site.scope for site in self.capture_sites if site.role == UNKNOWN]
        return sites + [branch.scope for branch in self.stage_branches if branch.role == UNKNOWN]
