"""What may be done otherwise around a forward: to its class, its blocks, its head, and the module."""

import re

from auxtap.tests.rewriters.changes import both, end, lines, swap
from auxtap.tests.rewriters.drifts import Change, within


def changes_around(backbone: str) -> dict[str, Change]:
    """Return changes around a backbone's class."""
    turn = (
        "def turned(forward):\n"
        "    def run(*given, **named):\n"
        "        found = forward(*given, **named)\n"
        "        return (found[0], found[1][::-1]) if isinstance(found, tuple) else found\n"
        "    return run"
    )
    block = backbone.removesuffix("Model") + "DecoderLayer"
    return {
        "decorated": both(
            lines(rf"class {backbone}\(", turn),
            lambda text: re.sub(
                rf"(class {backbone}\(.*?)\n    def forward\(",
                r"\1\n    @turned\n    def forward(",
                text,
                count=1,
                flags=re.S,
            ),
        ),
        "patched behind its definition": end(f"{turn}\n\n\n{backbone}.forward = turned({backbone}.forward)"),
        "patched by setattr": end(f"{turn}\n\n\nsetattr({backbone}, 'forward', turned({backbone}.forward))"),
        "defined again": end(
            f"class {backbone}({backbone}):\n"
            "    def forward(self, *given, **named):\n"
            "        found = super().forward(*given, **named)\n"
            "        return (found[0], found[1][::-1]) if isinstance(found, tuple) else found"
        ),
        "patched through a loop": end(
            f"{turn}\n\n\nfor each in ({backbone},):\n    each.forward = turned(each.forward)"
        ),
        "patched through globals": end(f"{turn}\n\n\nglobals()['{backbone}'].forward = turned({backbone}.forward)"),
        "patched in a function": end(
            f"{turn}\n\n\ndef change(kind):\n    kind.forward = turned(kind.forward)\n\n\nchange({backbone})"
        ),
        "patched through type": end(
            f"{turn}\n\n\nif True:\n    type.__setattr__({backbone}, 'forward', turned({backbone}.forward))"
        ),
        "bound anew at the end": end(
            f"class Kept({backbone}):\n"
            "    def forward(self, *given, **named):\n"
            "        found = super().forward(*given, **named)\n"
            "        return (found[0], found[1][::-1]) if isinstance(found, tuple) else found\n\n\n"
            f"{backbone} = Kept"
        ),
        "block patched": end(
            "def scaled(forward):\n"
            "    def run(self, positions, hidden_states, *given, **named):\n"
            "        return forward(self, positions, hidden_states.mul_(2), *given, **named)\n"
            "    return run\n\n\n"
            f"{block}.forward = scaled({block}.forward)"
        ),
        "block called in another way": end(
            "def called(self, positions, hidden_states, *given, **named):\n"
            "    return self.forward(positions, hidden_states * 2, *given, **named)\n\n\n"
            f"{block}.__call__ = called"
        ),
        "torch shadowed": end(
            "class torch:\n"
            "    Tensor = object\n"
            "    no_grad = staticmethod(lambda *given: given[0] if given else (lambda each: each))"
        ),
        "layers turned in a helper": lambda text: re.sub(
            rf"(class {backbone}\(.*?\n        self\.layers_to_capture = \[\]\n)",
            r"\1        self.prepare()\n\n    def prepare(self):\n        self.layers[:] = self.layers[::-1]\n",
            text,
            count=1,
            flags=re.S,
        ),
        "layers swapped": lambda text: re.sub(
            rf"(class {backbone}\(.*?\n        self\.layers_to_capture = \[\]\n)",
            r"\1        self.layers[1], self.layers[2] = self.layers[2], self.layers[1]\n",
            text,
            count=1,
            flags=re.S,
        ),
        "layers turned by another name": lambda text: re.sub(
            rf"(class {backbone}\(.*?\n        self\.layers_to_capture = \[\]\n)",
            r"\1        blocks = self.layers\n        blocks.reverse()\n",
            text,
            count=1,
            flags=re.S,
        ),
        "layers turned outside": end(
            f"def begin(self, config, *given, made={backbone}.__init__, **named):\n"
            "    made(self, config, *given, **named)\n"
            "    self.layers.reverse()\n\n\n"
            f"{backbone}.__init__ = begin"
        ),
        "hidden in an attribute of the head": _of_head(
            backbone,
            "self.kept = hidden_states\nhidden_states, aux_hidden_states = self.kept[0], list(reversed(self.kept[1]))",
        ),
        "head hands on another": _of_head(
            backbone,
            (
                "hidden_states, aux_hidden_states = hidden_states\n"
                "aux_hidden_states = [hidden_states for _ in aux_hidden_states]"
            ),
        ),
        "class decorated": both(
            lines(
                rf"class {backbone}\(",
                (
                    f"{turn}\n\n\n"
                    "def turning(kind):\n"
                    "    kind.forward = turned(kind.forward)\n"
                    "    return kind\n\n\n"
                    "@turning"
                ),
            )
        ),
        "layers turned at the end of init": lambda text: re.sub(
            rf"(class {backbone}\(.*?\n        self\.layers_to_capture = \[\]\n)",
            r"\1        self.layers = self.layers[::-1]\n",
            text,
            count=1,
            flags=re.S,
        ),
        "first block left out": lambda text: re.sub(
            rf"(class {backbone}\(.*?\n        self\.layers_to_capture = \[\]\n)",
            r"\1        self.start_layer = self.start_layer + 1\n",
            text,
            count=1,
            flags=re.S,
        ),
        "a block changes the stream before its forward": end(
            f"class Scaling({block}):\n    def forward(self, positions, hidden_states, *given, **named):\n"
            "        return super().forward(positions, hidden_states, *given, **named)"
        ),
        "head turns the states": _of_head(
            backbone, "hidden_states, aux_hidden_states = hidden_states\naux_hidden_states = aux_hidden_states[::-1]"
        ),
        "head drops one": _of_head(
            backbone, "hidden_states, aux_hidden_states = hidden_states\naux_hidden_states.pop()"
        ),
        "head scales": _of_head(
            backbone, "hidden_states, aux_hidden_states = hidden_states\naux_hidden_states[0].mul_(2)"
        ),
    }


def _of_head(backbone: str, text: str) -> Change:
    return within(
        backbone.removesuffix("Model") + "ForCausalLM.forward",
        swap("hidden_states, aux_hidden_states = hidden_states", text),
    )
