"""Which class an attribute holds that is made of an argument of `__init__`."""

import pytest

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tracer.flow.classes import ClassIndex

PATH = SRT_ROOT / "models/picture.py"
SOURCE = b"""
class SmallModel: ...


class LargeModel: ...


class Picture:
    def __init__(self, config, prefix="", body_type=SmallModel):
        super().__init__()
        self.model = body_type(config)


class ByDefault(Picture):
    def __init__(self, config):
        super().__init__(config)


class ByPlace(Picture):
    def __init__(self, config, prefix="", body_type=LargeModel):
        super().__init__(config, prefix, body_type)


class ByKeyword(Picture):
    def __init__(self, config):
        super().__init__(config=config, body_type=LargeModel)


class Inheriting(ByPlace): ...


class HandingOn(ByPlace):
    def __init__(self, config):
        super().__init__(config, body_type=SmallModel)
"""


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Picture", "SmallModel"),
        ("ByDefault", "SmallModel"),
        ("ByPlace", "LargeModel"),
        ("ByKeyword", "LargeModel"),
        ("Inheriting", "LargeModel"),
        ("HandingOn", "SmallModel"),
    ],
)
def test_a_class_is_handed_up_or_the_default(name: str, model: str) -> None:
    index = ClassIndex(SourceTree("0.0", "small", "", {PATH: SOURCE}))
    (member,) = index.members(index.classes_of(PATH)[name])
    assert (member.attribute, member.found.name) == ("model", model)
