"""The functions that the patch calls. After start none of them raises into a forward.

They stand in `ModelRunner` where a draft model's layers would be set (arm) and where the runner begins (rank, up to
0.5.11), in `Scheduler.run_batch` before 0.5.6 (attach), in `ForwardBatch.init_new` (note), in `LogitsProcessor.forward`
(tap), and at the stage exit of a model's forward (stage). In models without capture code a line in the loop over the
blocks hands on what enters each (block). Where the final state before the norm is wanted, a hook takes what the norm
gets.
"""

import logging
import os
import secrets
import socket
from typing import Any

from . import arming, protocol, rows
from .capture import Capture, Stage, dtype_name, unpack_states
from .config import RefusedError, TapConfig
from .ranks import Ranks, find_ranks, keep_dp_rank
from .spool import SpoolDirectory
from .witness import Witness
from .writer import PendingBudget, Writer

logger = logging.getLogger("sglang.srt.auxtap")

# The one capture of this process; None on ranks and stages that write nothing.
_capture: Capture | None = None
# The model that was armed: releases that build their attention backends twice arm it twice.
_armed: Any = None
# Held for as long as the process lives, so that no second server writes into the same spool.
_lock: int | None = None


def arm(model_runner: Any) -> None:
    """Choose the layers on the loaded model and open the spool.

    Raises:
        RefusedError: states would be wrong or could not be written; the server stops with the reason in its log.
    """
    global _armed
    if getattr(model_runner, "is_draft_worker", False) or model_runner.model is _armed:
        return
    config = TapConfig.from_environment(os.environ)
    server_args = model_runner.server_args
    arming.check_settings(server_args, config)
    for argument in arming.clear_settings(server_args):
        logger.info("auxtap: %s turned off: captured states would be wrong", argument)
    backbone = arming.find_backbone(model_runner.model)
    num_layers = int(model_runner.model_config.num_hidden_layers)
    ranks = find_ranks(model_runner)
    own = arming.arm_backbone(backbone, config, num_layers, ranks.pp_size)
    _armed = model_runner.model
    stage = Stage(
        pp=ranks.pp,
        dp=ranks.dp,
        layers=own,
        has_final=backbone.end >= num_layers,
        hidden_size=int(model_runner.model_config.hidden_size),
        dtype=_supported_dtype(model_runner.dtype),
        final=config.final,
    )
    if stage.takes_prenorm:
        arming.find_final_norm(backbone).register_forward_pre_hook(_before_norm, with_kwargs=True)
    if not ranks.is_writer:
        _start_witness(config, stage, ranks, collects=backbone.head is None)
        return
    _start(config, stage, model_runner, ranks, collects=backbone.head is None)
    logger.info(
        "auxtap: armed %s stage %d/%d: layers %s%s of %d, spool %s",
        type(backbone.module).__name__,
        stage.pp,
        ranks.pp_size,
        list(own),
        f" and the final state ({stage.final})" if stage.has_final else "",
        num_layers,
        config.spool,
    )


def rank(model_runner: Any, dp_rank: int | None) -> None:
    """Keep the data-parallel rank of a runner that does not keep it itself."""
    keep_dp_rank(model_runner, dp_rank)


def attach(worker_batch: Any, batch: Any) -> None:
    """Give the worker's batch a snapshot of its requests, where the release's does not list them.

    A snapshot and not the list itself, which the scheduler goes on changing while the forward runs.
    """
    if _capture is None:
        return
    try:
        worker_batch._auxtap = rows.note_requests(batch.reqs)
    except Exception as error:
        _report("attach", error)


def note(forward_batch: Any, batch: Any) -> None:
    """Attach to a new ForwardBatch whose prompts it holds.

    The attribute is no dataclass field: two-batch overlap raises on unknown fields, and padding, which rebinds
    tensors, leaves an attribute alone.
    """
    if _capture is None:
        return
    try:
        prefill = rows.is_prefill(forward_batch)
        noted = rows.noted_requests(batch) if prefill else ()
        if isinstance(_capture.writer, Witness):
            noted = rows.canary_requests(noted)
        forward_batch._auxtap = noted
        _capture.expect(noted, prefill=prefill)
    except Exception as error:
        _report("note", error)


def tap(processor: Any, hidden_states: Any, aux_hidden_states: Any, forward_batch: Any) -> None:
    """Take the states of a prefill forward on the last stage: `hidden_states` [rows, hidden] after the final norm,
    `aux_hidden_states` a list of [rows, hidden], one packed [rows, layers * hidden] (0.5.17 on), or None."""
    if _capture is not None and _capture.stage.has_final and rows.is_prefill(forward_batch):
        _take(forward_batch, aux_hidden_states, hidden_states)


def stage(backbone: Any, aux_hidden_states: Any, forward_batch: Any) -> None:
    """Take the states that this stage captured before its exit drops them; nothing to do on the last stage.

    `aux_hidden_states` is what `tap` gets, or the packer that is still filling it.
    """
    if _capture is not None and not _capture.stage.has_final and rows.is_prefill(forward_batch):
        _take(forward_batch, aux_hidden_states, None)


def block(backbone: Any, index: int, hidden_states: Any, forward_batch: Any) -> None:
    """Take what enters block `index`: `hidden_states` [rows, hidden], the whole stream."""
    if _capture is not None and index in _capture.stage.layers and rows.is_prefill(forward_batch):
        _collect(index, hidden_states, None)


def block_sum(backbone: Any, index: int, hidden_states: Any, residual: Any, forward_batch: Any) -> None:
    """Take what enters block `index`: the sum of `hidden_states` and `residual`, both [rows, hidden]."""
    if _capture is not None and index in _capture.stage.layers and rows.is_prefill(forward_batch):
        _collect(index, hidden_states, residual)


def stage_of_blocks(backbone: Any, forward_batch: Any) -> None:
    """Take what `block` collected on this stage; nothing to do on the last stage."""
    stage(backbone, None, forward_batch)


def _before_norm(norm: Any, inputs: Any, named: Any) -> None:
    """Keep what the final norm gets; returns nothing, so that the norm gets just that."""
    if _capture is None:
        return
    try:
        _capture.keep_norm_input(norm, (*inputs, *named.values()))
    except Exception as error:
        _report("norm", error)


def _collect(index: int, hidden_states: Any, residual: Any) -> None:
    assert _capture is not None
    try:
        # A new tensor either way: blocks write over what they are given.
        _capture.collected[index] = hidden_states.clone() if residual is None else hidden_states + residual
    except Exception as error:
        _report("block", error)


def _take(forward_batch: Any, states: Any, final: Any) -> None:
    assert _capture is not None
    try:
        layers = _capture.stage.layers
        if _capture.collects:
            states = _capture.collected_states()
        _capture.take(forward_batch, unpack_states(states, len(layers), _capture.stage.hidden_size), final)
    except Exception as error:
        _report("take", error)
        _capture.fail(_capture.noted(forward_batch) or (), f"the tap failed: {error}")


def _report(where: str, error: Exception) -> None:
    assert _capture is not None
    _capture.writer.note_error(f"{where}: {type(error).__name__}: {error}")


def _supported_dtype(dtype: Any) -> str:
    name = dtype_name(dtype)
    if name is None:
        raise RefusedError(f"states of {dtype} are not supported")
    return name


def _start(config: TapConfig, stage: Stage, model_runner: Any, ranks: Ranks, *, collects: bool) -> None:
    global _capture, _lock
    spool = SpoolDirectory(config.spool)
    model_config = model_runner.model_config
    host = socket.gethostname()
    name = protocol.descriptor_name(host, stage.pp, stage.dp)
    _lock = spool.lock(f"{name.removesuffix('.json')}.lock")
    _clear_leftovers(spool, name, stage)
    row_bytes = stage.hidden_size * protocol.DTYPE_BYTES[stage.dtype]
    if config.max_pending_bytes < 4 * row_bytes:
        raise RefusedError(f"AUXTAP_MAX_PENDING_BYTES is below four rows ({4 * row_bytes} bytes)")
    descriptor = protocol.RankDescriptor(
        host=host,
        pid=os.getpid(),
        nonce=secrets.token_hex(8),
        pp_rank=stage.pp,
        pp_size=ranks.pp_size,
        dp_rank=stage.dp,
        dp_size=ranks.dp_size,
        tp_size=ranks.tp_size,
        layers=stage.layers,
        all_layers=config.layers,
        has_final=stage.has_final,
        num_layers=int(model_config.num_hidden_layers),
        hidden_size=stage.hidden_size,
        vocab_size=int(model_config.vocab_size),
        context_length=int(model_config.context_len),
        dtype=stage.dtype,
        model_class=type(model_runner.model).__name__,
        model_path=str(model_config.model_path),
        release=config.release,
        patch_digest=config.patch_digest,
        source_digest=config.source_digest,
        way=config.way,
        final=config.final,
        setters=arming.find_setters(model_runner.model),
    )
    writer = Writer(spool, name, descriptor.nonce, PendingBudget(config.max_pending_bytes))
    writer.start()
    spool.publish_json(name, descriptor.to_json())
    if stage.writes:
        _capture = Capture(stage, writer, config.max_wait_s, collects=collects)


def _start_witness(config: TapConfig, stage: Stage, ranks: Ranks, *, collects: bool) -> None:
    """Have this rank digest what a canary's prompts give; without a spool on this host it does not, and says so."""
    global _capture
    if not stage.writes:
        return
    try:
        witness = Witness(SpoolDirectory(config.spool), secrets.token_hex(8), ranks.tp)
    except RefusedError as error:
        logger.warning("auxtap: rank %d bears no witness: %s", ranks.tp, error)
        return
    _capture = Capture(stage, witness, config.max_wait_s, collects=collects)


def _clear_leftovers(spool: SpoolDirectory, descriptor: str, stage: Stage) -> None:
    """Remove what an earlier server left unfinished under this descriptor: nobody will ever read it."""
    for name in spool.names():
        part = protocol.parse_part_name(name)
        mine = part is not None and (part.pp, part.dp) == (stage.pp, stage.dp)
        if (mine and part is not None and part.suffix == protocol.WRITING) or protocol.is_witness_name(name):
            spool.remove(name)
    spool.remove(descriptor)
