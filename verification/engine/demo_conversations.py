"""The conversations of the demo: made here, the same every time."""

import json
from pathlib import Path

QUESTIONS = (
    "What does a draft model do?",
    "Why is the residual added?",
    "Which layers are captured?",
    "Where does the final norm sit?",
    "What is a prefix cache?",
    "How many tokens fit?",
    "Why compare with a reference?",
    "What leaves the last stage?",
)
ANSWERS = (
    "It guesses a few tokens ahead.",
    "So that each block only has to say what it adds to the stream.",
    "Those whose input tells early, middle and late features apart.",
    "Behind the last block; the state here is taken after it.",
    "Keys and values of a prompt that was seen before, so its rows are not computed again.",
    "As many as the context holds.",
    "Because a file that is there can still be wrong.",
    "Hidden states and logits.",
)
# Pre-tokenised samples at the edges: one token, two, and the longest of the demo.
EDGE_LENGTHS = (1, 2, 200)


def write_conversations(path: Path) -> None:
    """Write conversations of one to three turns, and token ids of a few lengths, as JSON lines."""
    with path.open("w") as file:
        for number, question in enumerate(QUESTIONS):
            for turns in (1, 2, 3):
                messages = [{"role": "system", "content": "Be brief."}] if turns == 2 else []
                for turn in range(turns):
                    position = (number + turn * 3) % len(QUESTIONS)
                    messages.append({"role": "user", "content": question if turn == 0 else QUESTIONS[position]})
                    messages.append({"role": "assistant", "content": ANSWERS[position]})
                file.write(json.dumps({"id": f"talk-{number}-{turns}", "messages": messages}) + "\n")
        for length in EDGE_LENGTHS:
            ids = [0x20 + (7 * position) % 95 for position in range(length)]
            file.write(json.dumps({"id": f"ids-{length}", "input_ids": ids}) + "\n")
