"""Which backbones this patch captures, and how. The patch writes this file anew from the tree that it is for.

Keys are `<module below sglang.srt.models>.<class>` of the class that defines the forward. `CAPTURES` have capture code
of SGLang's own and `LOOPS` a line at the top of a round; the value tells whether their pipeline stages are tapped.
`REFUSED` says why others cannot be captured, and which heads hand on another state than they are given. `NORMS` names
the attribute of the final norm where the forward calls it in a way that a hook can see, `MARKS` the mark by which a
backbone asks a block whether to capture, where no setter of its own sets it. `SETTERS` says of the model classes that
SGLang loads what each of their setters adds to the ids of a draft model, and under which condition.
"""

CAPTURES: "dict[str, bool]" = {}
LOOPS: "dict[str, bool]" = {}
REFUSED: "dict[str, str]" = {}
NORMS: "dict[str, str]" = {}
MARKS: "dict[str, str]" = {}
SETTERS: "dict[str, dict[str, tuple[tuple[int | None, str | None], ...]]]" = {}
