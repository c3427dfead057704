"""What a forward may do otherwise that appends the sum of what its blocks are given: each changes one place."""

import re

from auxtap.tests.rewriters.changes import both, lines, swap
from auxtap.tests.rewriters.drifts import Change, word

SUM = "hidden_states + residual"
APPEND = f"aux_hidden_states.append({SUM})"
TEST = "if i in self.layers_to_capture:"
LAYER = "layer = self.layers[i]"
MADE = "aux_hidden_states = []"
LOOP = r"for i in range\("
BLOCK = r"hidden_states, residual = layer\("
LAST = r"if len\(aux_hidden_states\) == 0:"
EXIT = r"if not self\.pp_group\.is_last_rank:"
RETURN = "return hidden_states, aux_hidden_states"

# What is appended in the place of the sum.
VALUES = {
    "norm of the sum": "self.norm(hidden_states + residual)",
    "norm of both": "self.norm(hidden_states.clone(), residual.clone())[0]",
    "the block's norm of the sum": "self.layers[i].input_layernorm(hidden_states + residual)",
    "a copy of the hidden state": "hidden_states.clone()",
    "a copy of the residual": "residual.clone()",
    "the residual itself": "residual",
    "the hidden state itself": "hidden_states",
    "difference": "hidden_states - residual",
    "twice the hidden state": "hidden_states * 2",
    "sum times two": "(hidden_states + residual) * 2",
    "half the sum": "(hidden_states + residual) / 2",
    "detached hidden state": "hidden_states.detach()",
    "view of the residual": "residual.view(residual.shape)",
    "zeros": "torch.zeros_like(hidden_states)",
    "empty": "torch.empty_like(residual)",
    "sum in half": "(hidden_states + residual).half()",
    "sum in float": "(hidden_states + residual).float()",
    "sum to float32": "(hidden_states + residual).to(torch.float32)",
    "a method that is not there": "(hidden_states + residual).frozen()",
    "sum into the residual": "residual.add_(hidden_states)",
    "sum into the hidden state": "hidden_states.add_(residual)",
    "sum written over the residual": "torch.add(hidden_states, residual, out=residual)",
    "half of the residual": "torch.add(hidden_states, residual, alpha=0.5)",
    "augmented through operator": "__import__('operator').iadd(hidden_states, residual)",
    "rows turned": "(hidden_states + residual).flip(0)",
    "rows rolled": "(hidden_states + residual).roll(1, 0)",
    "first rows only": "(hidden_states + residual)[:1]",
    "first columns only": "(hidden_states + residual)[:, :2]",
    "hidden state twice": "hidden_states + hidden_states",
    "residual twice": "residual + residual",
    "sum where there is a residual, under another test": "hidden_states + residual if i > 2 else hidden_states",
    "the other way round": "hidden_states if residual is not None else hidden_states + residual",
    "under a test that is always true": "hidden_states + residual if residual is not None or 1 else hidden_states * 2",
    "walrus": "(hidden_states := hidden_states + residual)",
    "walrus over the residual": "hidden_states + (residual := residual * 2)",
    "in a list": "[hidden_states + residual]",
    "in a tuple": "(hidden_states + residual, residual)",
    "lambda": "(lambda h, r: h - r)(hidden_states, residual)",
    "the embeddings": "self.embed_tokens(input_ids)",
    "sum through a view written over": "(hidden_states.add_(residual)).view(-1, hidden_states.shape[-1])",
    "mean over the columns": "(hidden_states + residual).mean(1, True)",
}
# Lines before the test of the layer, in each round.
BEFORE = {
    "index lowered": "i = i - 1",
    "index raised": "i += 1",
    "index from a walrus": "(i := i - 1)",
    "hidden state scaled in place": (
        "if i in self.layers_to_capture:\n    saved = hidden_states\nhidden_states = hidden_states + 0"
    ),
    "residual dropped once": "residual = None if i == 3 else residual",
    "accumulator cleared in the round": "if i == 4:\n    aux_hidden_states.clear()",
    "accumulator made anew": "if i == 3:\n    aux_hidden_states = []",
    "round left out": "if i == 3:\n    continue",
    "loop left": "if i == 4:\n    break",
    "first state taken out": "if len(aux_hidden_states) > 1:\n    aux_hidden_states.pop(0)",
    "captured twice": "if i in self.layers_to_capture:\n    aux_hidden_states.append(hidden_states + residual)",
    "earlier state scaled": "for each in aux_hidden_states:\n    each.mul_(2)",
    "earlier state scaled through a view": "if aux_hidden_states:\n    aux_hidden_states[-1][:, :1].mul_(3)",
    "layers lost": "self.layers_to_capture = self.layers_to_capture[:1]",
    "layer list turned in each round": "self.layers.reverse()",
    "renamed and dropped": "del aux_hidden_states\naux_hidden_states = []",
    "shadowed in a try": "try:\n    hidden_states = hidden_states * 2\nfinally:\n    pass",
    "with over the pair": "with torch.no_grad():\n    hidden_states, residual = residual, hidden_states * 2",
    "layers set through setattr": "setattr(self, 'layers_to_capture', [])",
    "accumulator through vars": "locals()['aux_hidden_states'].clear()",
    "starred": "hidden_states, *rest = hidden_states * 2, residual",
    "append replaced": "aux_hidden_states.append = None if False else aux_hidden_states.append",
}
# Lines between the capture and the call of the block.
BETWEEN = {
    "hidden state changed in place": "hidden_states.mul_(2)",
    "hidden state changed through a view": "hidden_states[:, :1].mul_(2)",
    "hidden state assigned in part": "hidden_states[0] = 0",
    "residual changed in place": "residual is None or residual.add_(1)",
    "residual augmented": "if residual is not None:\n    residual += 1",
    "hidden state normed before": "hidden_states = layer.input_layernorm(hidden_states)",
    "alias changed in place": "alias = hidden_states\nalias.add_(1)",
    "alias through a tuple": "pair = (hidden_states, residual)\npair[0].add_(1)",
    "changed by a helper": "torch.add(hidden_states, 1, out=hidden_states)",
    "state changed behind": "if aux_hidden_states:\n    aux_hidden_states[-1].mul_(2)",
    "last state replaced": "if aux_hidden_states:\n    aux_hidden_states[-1] = hidden_states",
    "changed by a nested function": "def grow():\n    hidden_states.add_(1)\ngrow()",
    "changed by a lambda": "(lambda: hidden_states.add_(1))()",
    "another hidden state": "hidden_states = hidden_states + 1",
    "the next block": "layer = self.layers[min(i + 1, self.end_layer - 1)]",
    "a block of another name": "layer = self.layers[self.start_layer]",
    "moved by setattr": "setattr(layer, 'forward', layer.forward) if False else hidden_states.mul_(2)",
    "taken out by exec": "exec('aux_hidden_states.clear()')",
    "sorted": "aux_hidden_states.sort(key=lambda each: -each.array.sum())",
}
# Lines behind the loop, before the length is asked.
BEHIND = {
    "comprehension": "aux_hidden_states = [each * 2 for each in aux_hidden_states]",
    "reversal": "aux_hidden_states = aux_hidden_states[::-1]",
    "reversed in place": "aux_hidden_states.reverse()",
    "cleared": "aux_hidden_states.clear()",
    "one taken out": "aux_hidden_states.pop()",
    "written over": "for each in aux_hidden_states:\n    each.zero_()",
    "deleted slice": "del aux_hidden_states[:1]",
    "doubled": "aux_hidden_states *= 2",
    "extended": "aux_hidden_states += [hidden_states]",
    "sorted by a sum": "aux_hidden_states.sort(key=lambda each: float(each.array.sum()))",
    "filtered": "aux_hidden_states = list(filter(lambda each: False, aux_hidden_states))",
    "normed": "aux_hidden_states = [self.norm(each) for each in aux_hidden_states]",
    "written through a view": "aux_hidden_states and aux_hidden_states[0][:, 0].zero_()",
    "first replaced": "aux_hidden_states[:1] = [hidden_states]",
    "star": "*aux_hidden_states, _ = *aux_hidden_states, hidden_states\naux_hidden_states.insert(0, hidden_states)",
    "zip": "for each, other in zip(aux_hidden_states, aux_hidden_states):\n    each += other",
    "another name cleared": "other = aux_hidden_states\nother.clear()",
    "cleared by a method": "getattr(aux_hidden_states, 'clear')()",
    "cleared through the class": "list.clear(aux_hidden_states)",
    "one on a comprehension": "[aux_hidden_states.pop(0) for _ in range(1)]",
}
# Other texts for the test of the layer.
TESTS = {
    "one later": "if i + 1 in self.layers_to_capture:",
    "one before": "if i - 1 in self.layers_to_capture:",
    "not in": "if i not in self.layers_to_capture:",
    "or true": "if i in self.layers_to_capture or True:",
    "and a bound": "if i in self.layers_to_capture and i < 3:",
    "only in decode": "if i in self.layers_to_capture and forward_batch.forward_mode.is_decode():",
    "not when mixed": "if i in self.layers_to_capture and not forward_batch.forward_mode.is_mixed():",
    "a slice": "if i in self.layers_to_capture[1:]:",
    "a set of others": "if i in {each + 1 for each in self.layers_to_capture}:",
    "with a residual of the first": "if i in self.layers_to_capture and len(aux_hidden_states) < 1:",
    "the last index": "if self.end_layer - 1 - i in self.layers_to_capture:",
    "another list": "if i in getattr(self, 'layers_kept', []):",
    "count of the rows": "if i in self.layers_to_capture and hidden_states.shape[0] > 2:",
}
LOOPS = {
    "reversed": "for i in reversed(range(self.start_layer, self.end_layer)):",
    "one late": "for i in range(self.start_layer + 1, self.end_layer):",
    "every second": "for i in range(self.start_layer, self.end_layer, 2):",
    "sorted by another key": "for i in sorted(range(self.start_layer, self.end_layer), key=lambda each: -each):",
    "from one": "for i in range(self.start_layer - self.start_layer + 1, self.end_layer):",
    "counted from the end": "for i in range(-len(self.layers) + self.start_layer, 0):",
}
LAYERS = {
    "next layer": "layer = self.layers[i + 1 if i + 1 < self.end_layer else i]",
    "layers from the end": "layer = self.layers[self.end_layer - 1 - i + self.start_layer]",
    "the one before": "layer = self.layers[i - 1]",
    "negative": "layer = self.layers[-i - 1]",
    "the first": "layer = self.layers[0]",
    "through enumerate": "layer = dict(enumerate(self.layers, 1)).get(i, self.layers[i])",
    "through a walrus": "layer = self.layers[(i := min(i + 1, self.end_layer - 1))]",
    "minus nothing": "layer = self.layers[i - 0]",
    "wrapped": "layer = (lambda *given: self.layers[i](given[0], given[1] * 2, *given[2:]))",
    "its forward": "layer = self.layers[i].forward",
    "two at once": "layer = self.layers[i] if i != 2 else self.layers[i + 1]",
    "turned list": "layer = self.layers[::-1][i]",
}
# Changes of the forward as text.
SHAPES: dict[str, Change] = {
    "accumulator by default argument": both(
        swap("input_embeds: torch.Tensor = None,", "input_embeds: torch.Tensor = None,\n        kept=[],"),
        swap(MADE, "aux_hidden_states = kept"),
    ),
    "accumulator kept on self": swap(MADE, "aux_hidden_states = self.__dict__.setdefault('kept', [])"),
    "accumulator of one class": both(
        lines(r"aux_hidden_states = \[\]", "class First(list):\n    append = list.insert if False else list.append"),
        swap(
            MADE,
            (
                "aux_hidden_states = First()\n"
                "aux_hidden_states.append = lambda each: list.insert(aux_hidden_states, 0, each)"
            ),
        ),
    ),
    "two accumulators": both(
        swap(MADE, "aux_hidden_states = []\nother = []"), swap(RETURN, "return hidden_states, other")
    ),
    "reversed on the way out": swap(RETURN, "return hidden_states, aux_hidden_states[::-1]"),
    "copies doubled on the way out": swap(RETURN, "return hidden_states, [each + each for each in aux_hidden_states]"),
    "first only": swap(RETURN, "return hidden_states, aux_hidden_states[:1]"),
    "insert": swap("aux_hidden_states.append(", "aux_hidden_states.insert(0, "),
    "extend": both(swap(APPEND, f"aux_hidden_states.extend([{SUM}] * 2)")),
    "len shadowed by a parameter": both(
        swap("input_embeds: torch.Tensor = None,", "input_embeds: torch.Tensor = None,\n        len=lambda each: 0,"),
    ),
    "returned from a lambda": swap(
        RETURN, "return (lambda: (hidden_states, [each for each in reversed(aux_hidden_states)]))()"
    ),
    "swapped keywords": lambda text: re.sub(
        r"layer\(\s*positions,\s*hidden_states,\s*forward_batch,\s*residual,?\s*\)",
        "layer(positions, residual=hidden_states, forward_batch=forward_batch, hidden_states=residual)",
        text,
    ),
    "scaled keyword": lambda text: re.sub(
        r"layer\(\s*positions,\s*hidden_states,\s*forward_batch,\s*residual,?\s*\)",
        "layer(positions, hidden_states=hidden_states * 2, forward_batch=forward_batch, residual=residual)",
        text,
    ),
    "starred arguments": lambda text: re.sub(
        r"layer\(\s*positions,\s*hidden_states,\s*forward_batch,\s*residual,?\s*\)",
        "layer(*(positions, hidden_states * 2, forward_batch, residual))",
        text,
    ),
    "block given a state changed in place": lambda text: re.sub(
        r"layer\(\s*positions,\s*hidden_states,\s*forward_batch,\s*residual,?\s*\)",
        "layer(positions, hidden_states.mul_(2), forward_batch, residual)",
        text,
    ),
    "block given the norm": lambda text: re.sub(
        r"layer\(\s*positions,\s*hidden_states,\s*forward_batch,\s*residual,?\s*\)",
        "layer(positions, self.norm(hidden_states), forward_batch, residual)",
        text,
    ),
    "positions written over": both(swap(TEST, "positions = hidden_states\npositions.mul_(2)\n" + TEST)),
    "batch holds the state": both(
        swap(TEST, "forward_batch.kept = hidden_states\n" + TEST), swap(LAYER, "forward_batch.kept.mul_(2)\n" + LAYER)
    ),
    "self holds the state": both(
        swap(TEST, "self.kept = hidden_states\n" + TEST), swap(LAYER, "self.kept.mul_(2)\n" + LAYER)
    ),
    "generator": swap(
        MADE, "aux_hidden_states = []\neager = (aux_hidden_states.clear() for _ in range(1))\nlist(eager)"
    ),
    "range shadowed": lines(
        r"aux_hidden_states = \[\]",
        "range = lambda first, last: [each for each in (*__builtins__['range'](last - 1, first, -1), first)]",
    ),
    "len shadowed": lines(r"aux_hidden_states = \[\]", "len = lambda each: 0"),
    "residual given twice": swap("hidden_states, residual = layer(", "residual, hidden_states = layer("),
    "a block before the loop": lines(
        r"aux_hidden_states = \[\]", "if residual is None:\n    residual = hidden_states * 0\nhidden_states.mul_(2)\n"
    ),
    "bound append of another": both(
        swap(MADE, "aux_hidden_states = []\nkeep = [].append"), swap("aux_hidden_states.append(", "keep(")
    ),
}
# Members that the backbone's class may get.
TURNED = "class Turned(list):\n    def __contains__(self, item):\n        return list.__contains__(self, item - 1)"
MEMBERS = {
    "layers_to_capture is a property": (
        "@property\n"
        "def layers_to_capture(self):\n"
        "    return [each + 1 for each in self._chosen]\n\n"
        "@layers_to_capture.setter\n"
        "def layers_to_capture(self, given):\n"
        "    self._chosen = given"
    ),
    "equal to what is set, but not in the forward": (
        "@property\n"
        "def layers_to_capture(self):\n"
        "    return Turned(self._chosen)\n\n"
        "@layers_to_capture.setter\n"
        "def layers_to_capture(self, given):\n"
        "    self._chosen = given"
    ),
    "setattr overridden": (
        "def __setattr__(self, name, value):\n"
        "    shift = name == 'layers_to_capture'\n"
        "    object.__setattr__(self, name, [each + 1 for each in value] if shift else value)"
    ),
    "getattribute overridden": (
        "def __getattribute__(self, name):\n"
        "    found = object.__getattribute__(self, name)\n"
        "    return found[:1] if name == 'layers_to_capture' and len(found) > 3 else found"
    ),
    "called in another way": (
        "def __call__(self, *given, **named):\n"
        "    found = self.forward(*given, **named)\n"
        "    return (found[0], found[1][::-1]) if isinstance(found, tuple) else found"
    ),
}
HARMLESS: dict[str, Change] = {
    "accumulator annotated": swap(MADE, "aux_hidden_states: List[torch.Tensor] = []"),
    "layer annotated": swap(LAYER, "layer: nn.Module = self.layers[i]"),
    "accumulator renamed": word("aux_hidden_states", "kept"),
    "index renamed": word("i", "number"),
    "layer renamed": word("layer", "block"),
    "residual renamed": lambda text: re.sub(r'(?<!")\bresidual\b', "rest", text),
    "residual first": swap(SUM, "residual + hidden_states"),
    "sum by name": swap(APPEND, f"kept = {SUM}\naux_hidden_states.append(kept)"),
    "one line": lambda text: re.sub(rf"({re.escape(TEST)})\s+({re.escape(APPEND)})", r"\1 \2", text),
    "comment": swap(TEST, f"{TEST}  # what enters the block"),
}


def other_loop(text: str) -> Change:
    """Put another line in the place of the loop's."""
    return lambda old: re.sub(rf"{LOOP}[^\n]*:", lambda _: text, old)
