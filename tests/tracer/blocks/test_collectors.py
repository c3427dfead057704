"""What a class of collectors keeps of the states that it is given."""

import pytest

from auxtap.tests.tracer.blocks.small import COLLECTORS, MODEL, small_tree
from auxtap.tracer.blocks.collectors import read_collector
from auxtap.tracer.blocks.handing import Collector
from auxtap.tracer.blocks.naming import Names
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.report.readings import Objection, SourceLine

AT = SourceLine(MODEL, 1, "SmallModel.forward", "aux_hidden_states = Packed(2)")


def collector(name: str, old: str = "", new: str = "") -> Collector | Objection:
    tree = small_tree({COLLECTORS: (old, new)} if old else {})
    return read_collector(Names(ClassIndex(tree)), COLLECTORS, name, AT)


def test_copies_are_kept_in_order() -> None:
    both, finish = frozenset({"append", "capture"}), frozenset({"finalize"})
    assert collector("KeptList") == Collector(copies=True, takes=frozenset({"capture"}), finish=frozenset())
    assert collector("Packed") == Collector(copies=True, takes=both, finish=finish)
    assert collector("Written") == Collector(copies=True, takes=frozenset({"append"}), finish=finish)


def test_a_class_that_is_not_there() -> None:
    assert collector("Other") == Objection(AT, "what a Other keeps is not known")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("KeptList", "hidden if owned else hidden.clone()", "hidden"),
        ("KeptList", "hidden if owned else hidden.clone()", "hidden.clone() if owned else hidden"),
        ("KeptList", "hidden if owned else hidden.clone()", "hidden if owned else hidden.clone() * 2"),
        ("KeptList", "self.append(hidden if", "self.insert(0, hidden if"),
        (
            "KeptList",
            '    def capture(self, hidden, *, owned=False):\n        """',
            '    def capture(self, hidden, *, owned=True):\n        """',
        ),
        (
            "KeptList",
            "class KeptList(list):",
            "class KeptList(list):\n    def append(self, hidden):\n        return None\n",
        ),
        (
            "KeptList",
            "class KeptList(list):",
            "class KeptList(list):\n    def __iter__(self):\n        return reversed(self)\n",
        ),
        ("KeptList", "class KeptList(list):", "@ordered\nclass KeptList(list):"),
        ("KeptList", "class KeptList(list):", "class KeptList(dict):"),
        ("Packed", "        self.slot(hidden).copy_(hidden)", "        self.slot(hidden).copy_(hidden.abs())"),
        ("Packed", "        self.slot(hidden).copy_(hidden)", "        self.slot(hidden).add_(hidden)"),
        (
            "Packed",
            "        start = self._idx * self._feature_size\n        self._idx += 1",
            "        start = 0\n        self._idx += 1",
        ),
        ("Packed", "        self._idx += 1\n        return", "        self._idx += 2\n        return"),
        ("Packed", "        for hidden in hiddens:", "        for hidden in reversed(hiddens):"),
        (
            "Packed",
            'raise RuntimeError("some are missing")\n        return self._buffer',
            'raise RuntimeError("some are missing")\n        return self._buffer.flip(0)',
        ),
        ("Packed", "out=batch.buffer", "out=batch.other()"),
        ("Written", "].copy_(hidden)\n        self._idx += 1", "].copy_(hidden)\n        self._idx -= 1"),
        (
            "Written",
            "        self._idx = 0\n\n    def append(self, hidden):\n        feature",
            "        self._idx = 1\n\n    def append(self, hidden):\n        feature",
        ),
    ],
)
def test_what_is_not_known_is_objected_to(name: str, old: str, new: str) -> None:
    assert isinstance(collector(name, old, new), Objection)
