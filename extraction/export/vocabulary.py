"""A draft vocabulary: the tokens that are trained most often, and the maps between it and the target's.

`d2t[i]` is what is added to draft token i to have the target's token; `t2d[t]` tells whether target token t is in it.
Ties go to the smaller token, and where too few tokens were seen the smallest others fill up, as in SpecForge 0.2.0
(`data/preprocessing.py` process_token_dict_to_mappings) and speculators 0.9.0 (`train/vocab_mapping.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auxtap.core.errors import IntegrityError, UsageError
from auxtap.extraction.export.contract import TokenRow


@dataclass(frozen=True)
class DraftVocabulary:
    """`d2t` int64 [draft], `t2d` bool [target]; `share` of the trained tokens is in it."""

    d2t: NDArray[np.int64]
    t2d: NDArray[np.bool_]
    share: float


def count_trained(rows: Iterable[TokenRow], vocab_size: int) -> NDArray[np.int64]:
    """Count each token where the mask is set, int64 [vocab].

    Raises:
        IntegrityError: a token is outside the vocabulary.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for row in rows:
        trained = row.input_ids[row.loss_mask.astype(bool)]
        if len(trained) and not 0 <= trained.min() <= trained.max() < vocab_size:
            raise IntegrityError(
                f"sample {row.place.sample_id} holds a token outside the model's vocabulary of {vocab_size}",
                hint="the tokenizer of the dataset is not the model's",
            )
        counts += np.bincount(trained, minlength=vocab_size)
    return counts


def choose_draft_vocabulary(counts: NDArray[np.int64], n_draft: int) -> DraftVocabulary:
    """Choose the `n_draft` tokens that `counts` [vocab] has most often.

    Raises:
        UsageError: the target's vocabulary is smaller, or nothing is trained.
    """
    if not 1 <= n_draft <= len(counts):
        raise UsageError(
            f"--draft-vocab {n_draft} is not within 1 to the model's {len(counts)} tokens", hint="32000 is usual"
        )
    if not counts.any():
        raise UsageError("no token of the store is trained: its masks are empty", hint="there is nothing to count")
    chosen = np.sort(np.lexsort((np.arange(len(counts)), -counts))[:n_draft])
    t2d = np.zeros(len(counts), dtype=np.bool_)
    t2d[chosen] = True
    return DraftVocabulary(chosen - np.arange(n_draft), t2d, float(counts[chosen].sum() / counts.sum()))
