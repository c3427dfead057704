"""Text with structure, from a seed: who keeps what and where, questions whose answers stand above them, and sums.

Byte for byte ASCII, so that a byte is a token. A model has to look back to answer, which makes its next token worth
drafting: some follow from grammar, some from the text, some are anybody's guess.
"""

import random
from collections.abc import Iterator

NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo")
THINGS = ("lamps", "maps", "clocks", "boats", "rings", "books", "coins", "seeds")
PLACES = ("Bern", "Lima", "Oslo", "Rome", "Kyiv", "Doha")
BEGIN = 0xF6


def document(dice: random.Random) -> str:
    """Return one document: four facts, then questions and sums in any order."""
    people = dice.sample(NAMES, 4)
    facts = [(name, dice.choice(THINGS), dice.choice(PLACES), dice.randint(2, 9)) for name in people]
    lines = [f"{name} keeps {count} {thing} in {place}." for name, thing, place, count in facts]
    for _ in range(5):
        name, thing, place, count = dice.choice(facts)
        one, two = dice.randint(1, 9), dice.randint(1, 9)
        lines.append(
            dice.choice(
                (
                    f"What does {name} keep? {thing}.",
                    f"Where does {name} keep {thing}? {place}.",
                    f"How many {thing} does {name} keep? {count}.",
                    f"{one}+{two}={one + two}.",
                )
            )
        )
    return "\n".join(lines) + "\n"


def documents(seed: int) -> Iterator[list[int]]:
    """Yield token ids of documents without end; other seeds give other documents."""
    dice = random.Random(seed)  # noqa: S311
    while True:
        yield [BEGIN, *document(dice).encode()]
