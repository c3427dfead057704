"""The settings that a server is proved under: its flags, and the traffic that makes them matter."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from auxtap.extraction.store.store_manifest import final_tensors
from auxtap.tap.protocol import BOTH_NORMS, POST_NORM, PRE_NORM
from auxtap.verification.engine.tiny_models import END_ID, TINY_LAYERS

# From one token to several chunks of 16, on both sides of a chunk's edge.
SAMPLE_TOKENS = (1, 2, 3, 5, 8, 13, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128, 150, 199, 200)
SEED = 7
LONGEST = 300
STAGE_FLAGS = ("--pp-size", "2")
RANK_FLAGS = ("--tp", "2")


@dataclass(frozen=True)
class Evidence:
    """What the server's log must show, or the setting did not happen: a regular expression and its meaning."""

    pattern: str
    meaning: str


@dataclass(frozen=True)
class Setting:
    """Flags of a server and what is sent to it; `tale` says it for people.

    `lengths` are prompt lengths in tokens; `concurrency` None sends all prompts at once; `layers` are capture
    indices, `final` says which final states are taken; `repeated` sends each prompt a second time;
    `parts_timeout_s` bounds the wait for parts that never come.
    """

    name: str
    tale: str
    arguments: tuple[str, ...] = ()
    lengths: tuple[int, ...] = SAMPLE_TOKENS
    concurrency: int | None = None
    max_new_tokens: int = 1
    layers: tuple[int, ...] = TINY_LAYERS
    final: str = POST_NORM
    radix_cache: bool = False
    repeated: bool = False
    parts_timeout_s: float = 60.0
    evidence: tuple[Evidence, ...] = ()

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states that a store must hold, in order."""
        return (*(f"hidden.{layer}" for layer in sorted(self.layers)), *final_tensors(self.final))

    @property
    def staged(self) -> bool:
        """Whether the decoder blocks are spread over pipeline stages."""
        return STAGE_FLAGS[0] in self.arguments

    @property
    def n_requests(self) -> int:
        """How many prompts are sent."""
        return len(self.lengths) * (2 if self.repeated else 1)

    @property
    def n_tokens(self) -> int:
        """How many rows each state must have."""
        return sum(self.lengths) * (2 if self.repeated else 1)


def random_lengths(count: int) -> tuple[int, ...]:
    """Return prompt lengths from 1 to `LONGEST`, both among them; the same every time."""
    dice = random.Random(SEED + count)  # noqa: S311
    return (1, LONGEST, *(dice.randint(1, LONGEST) for _ in range(count - 2)))


def _chunks(size: int) -> tuple[str, ...]:
    return ("--chunked-prefill-size", str(size))


def _chunked(size: int) -> Evidence:
    return Evidence(rf"Prefill batch.*#new-token: {size},", f"no prefill chunk of {size} tokens was run")


_TOGETHER = Evidence(r"Prefill batch.*#new-seq: (?:[2-9]|\d\d)", "no two prompts shared a forward")
_TWO_ROWS = Evidence(r"Prefill batch.*#new-token: 2,", "no forward had exactly two rows")
_MIXED = Evidence(r"Prefill batch.*#running-req: [1-9]", "no prompt was prefilled while others were decoding")
_RETRACTED = Evidence(r"Retract requests", "no request was retracted")
_CACHING = Evidence(r"disable_radix_cache'?(?:=|: )False", "the radix cache was off")
_DECODED = Evidence(r"Decode batch", "nothing was decoded")
# Prompts and answers that together need more than this many tokens of key-value memory. What these models answer is
# chance, and so is the end token among it: an answer that it ended would give its memory back. (`ignore_eos` would not
# do: for such requests the scheduler keeps all memory that they may need.)
_SMALL_POOL = ("--max-total-tokens", "512", "--schedule-conservativeness", "0.01")
_NO_EARLY_END = ("--preferred-sampling-params", f'{{"logit_bias": {{"{END_ID}": -1000.0}}}}')
_LOG_DECODING = ("--decode-log-interval", "1")
_LARGE_POOL = ("--max-total-tokens", "16384")

_ALL = (
    Setting("default", "twenty prompts of 1 to 200 tokens at once", evidence=(_TOGETHER,)),
    Setting("chunk8", "prefill in chunks of 8 tokens", _chunks(8), evidence=(_chunked(8),)),
    Setting("chunk16", "prefill in chunks of 16 tokens", _chunks(16), evidence=(_chunked(16),)),
    Setting(
        "mixed",
        "chunks of 16 with `--enable-mixed-chunk` while other requests decode",
        (*_chunks(16), "--enable-mixed-chunk"),
        max_new_tokens=8,
        evidence=(_chunked(16), _MIXED),
    ),
    Setting(
        "one_by_one",
        "twelve prompts of 1 to 300 tokens, one after the other",
        lengths=random_lengths(12),
        concurrency=1,
    ),
    Setting(
        "concurrent32",
        "32 prompts of 1 to 300 tokens at once",
        _LARGE_POOL,
        lengths=random_lengths(32),
        concurrency=32,
        evidence=(_TOGETHER,),
    ),
    Setting("two_rows", "batches of exactly two rows", lengths=(2, 2, 2, 2), concurrency=1, evidence=(_TWO_ROWS,)),
    Setting(
        "radix_key",
        "radix cache on, each prompt sent twice, every request under a key of its own",
        radix_cache=True,
        repeated=True,
        evidence=(_CACHING,),
    ),
    Setting(
        "retraction",
        "a token pool too small for all, so that requests are retracted and prefilled again",
        (*_SMALL_POOL, *_NO_EARLY_END),
        lengths=(40, 48, 56, 64, 72, 33),
        max_new_tokens=160,
        evidence=(_RETRACTED,),
    ),
    Setting("new0", "`max_new_tokens` 0", max_new_tokens=0),
    Setting("new8", "`max_new_tokens` 8", _LOG_DECODING, max_new_tokens=8, evidence=(_DECODED,)),
    Setting(
        "both_finals",
        "`--final both`, prefill in chunks of 16, answers of eight tokens",
        (*_chunks(16), *_LOG_DECODING),
        max_new_tokens=8,
        final=BOTH_NORMS,
        evidence=(_chunked(16), _DECODED),
    ),
    Setting("pre_norm", "`--final pre-norm`", final=PRE_NORM),
    Setting("pp2_both_finals", "`--pp-size 2 --final both`", STAGE_FLAGS, final=BOTH_NORMS),
    Setting("tp2", "`--tp 2`", RANK_FLAGS),
    Setting("dp2", "`--dp-size 2`", ("--dp-size", "2")),
    Setting("pp2", "`--pp-size 2`", STAGE_FLAGS),
    Setting(
        "pp2_chunk8",
        "`--pp-size 2` with chunks of 8 tokens",
        (*STAGE_FLAGS, *_chunks(8)),
        evidence=(_chunked(8),),
    ),
    # The last stage owns no captured layer: were its flag up, a plain tensor of two rows would be unpacked.
    Setting(
        "pp2_two_rows",
        "`--pp-size 2`, batches of exactly two rows, no captured layer on the last stage",
        STAGE_FLAGS,
        lengths=(2, 2, 2),
        concurrency=1,
        layers=(2, 3),
        evidence=(_TWO_ROWS,),
    ),
    Setting("tp2_pp2", "`--tp 2 --pp-size 2`", (*RANK_FLAGS, *STAGE_FLAGS)),
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _ALL}
