"""From the tensors of one forward to rows in the spool: copy, hand over, and never raise."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import protocol, rows
from .witness import NoBudget, Witness
from .writer import Begin, Block, End, Failure, PendingBudget, Writer

TORCH_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


class CaptureError(Exception):
    """The tensors of a forward are not what was armed for."""


@dataclass(frozen=True)
class Stage:
    """What this process captures: the capture indices of its stage, ascending, and on the last the final states that
    `final` names."""

    pp: int
    dp: int
    layers: tuple[int, ...]
    has_final: bool
    hidden_size: int
    dtype: str
    final: str = protocol.POST_NORM

    @property
    def takes_prenorm(self) -> bool:
        """Whether the final state before the norm is wanted here."""
        return self.has_final and self.final != protocol.POST_NORM

    @property
    def writes(self) -> bool:
        """Whether requests leave parts here at all."""
        return self.has_final or bool(self.layers)


def unpack_states(states: Any, n_layers: int, hidden_size: int) -> Sequence[Any]:
    """Return one tensor [rows, hidden] for each captured layer, whatever form a release hands them on in.

    Raises:
        CaptureError: a packed tensor is not [rows, layers * hidden].
    """
    if states is None:
        return ()
    if hasattr(states, "finalize"):
        states = states.finalize() if len(states) else ()
    if not hasattr(states, "chunk"):
        return tuple(states)
    if n_layers == 0 or states.dim() != 2 or states.shape[1] != n_layers * hidden_size:
        raise CaptureError(f"packed states have shape {tuple(states.shape)}, not [rows, {n_layers} * {hidden_size}]")
    return tuple(states.chunk(n_layers, dim=1))


def dtype_name(dtype: Any) -> str | None:
    """Return safetensors' name of a torch dtype, None when states of it are not supported."""
    return TORCH_DTYPES.get(str(dtype).rpartition(".")[2])


class Capture:
    """Takes the states of each prefill forward. One instance a process, called by the forward's thread only."""

    def __init__(self, stage: Stage, writer: Writer | Witness, max_wait_s: float, *, collects: bool = False) -> None:
        self.stage = stage
        self.writer = writer
        # Whether a line in the loop over the blocks brings the states, and what it brought in this forward.
        self.collects = collects
        self.collected: dict[int, Any] = {}
        # What the final norm got in this forward.
        self._norm_inputs: list[Any] = []
        self._max_wait_s = max_wait_s
        # Requests noted for a forward that has not reached the tap yet.
        self._awaited: tuple[rows.NotedRequest, ...] = ()
        # The batch that was noted last, None when it held no prompt rows.
        self._latest: tuple[rows.NotedRequest, ...] | None = None

    def expect(self, noted: tuple[rows.NotedRequest, ...], *, prefill: bool) -> None:
        """Note that a batch with these requests is about to run.

        When the forward before never reached the tap, its requests are failed here: never a missing file that
        nobody notices.
        """
        self.fail_awaited("its forward never reached the tap")
        self._awaited = noted
        self._norm_inputs = []
        self._latest = noted if prefill else None

    def keep_norm_input(self, norm: Any, inputs: Sequence[Any]) -> None:
        """Keep what the final norm is about to get: one [rows, hidden], or two whose sum it takes.

        A new tensor either way, made in the forward's own stream: fused norms write over both. Forwards without
        requests of ours, those of decoding among them, are let by.

        Raises:
            CaptureError: the norm was called in another way.
        """
        if not self._awaited:
            return
        given = [each for each in inputs if each is not None]
        if not all(hasattr(each, "dim") for each in given) or len(given) not in (1, 2):
            raise CaptureError(f"the final norm was called with {len(inputs)} arguments that are not one or two states")
        # Other norms take a residual too and hand it back untouched (Cohere's LayerNorm).
        if len(given) == 2 and not type(norm).__name__.endswith("RMSNorm"):
            raise CaptureError(f"whether {type(norm).__name__} adds its residual is not known")
        self._norm_inputs.append(given[0].clone() if len(given) == 1 else given[0] + given[1])

    def _norm_input(self) -> Any:
        kept, self._norm_inputs = self._norm_inputs, []
        if len(kept) != 1:
            raise CaptureError(f"the final norm was called {len(kept)} times in a forward, not once")
        return kept[0]

    def collected_states(self) -> tuple[Any, ...]:
        """Return what was collected, ascending, and begin anew.

        Raises:
            CaptureError: a layer is missing.
        """
        found, self.collected = self.collected, {}
        if set(found) != set(self.stage.layers):
            raise CaptureError(f"layers {sorted(found)} were collected, {list(self.stage.layers)} were armed")
        return tuple(found[layer] for layer in sorted(found))

    def noted(self, forward_batch: Any) -> "tuple[rows.NotedRequest, ...] | None":
        """Return the requests of a batch that reached the tap, None when it does not say whose rows it holds.

        From 0.5.14 on the forward gets a copy, which lost the attribute; its rids say that it is the batch that was
        noted last. Batches are noted and run one after the other by one thread, so no more than one is remembered.
        """
        attached: tuple[rows.NotedRequest, ...] | None = getattr(forward_batch, "_auxtap", None)
        if attached is not None:
            return attached
        rids = getattr(forward_batch, "rids", None)
        if rids is None:
            return None
        if self._latest is None or (not self._latest and not rows.holds_ours(rids)):
            return ()
        return self._latest if rows.same_requests(self._latest, rids) else None

    def take(self, forward_batch: Any, states: Sequence[Any], final: Any) -> None:
        """Copy the rows of our requests.

        Args:
            forward_batch: SGLang's ForwardBatch; carries what `note` attached as `_auxtap`, or its rids.
            states: one tensor [rows, hidden] for each layer of this stage, in ascending order.
            final: [rows, hidden] after the final norm on the last stage, None elsewhere.
        """
        noted = self.noted(forward_batch)
        if noted is None:
            if not self._awaited:
                # Not even noted: whether requests of ours were in it is not known, so it is counted.
                self.writer.count(unattributed_batches=1)
            self.fail_awaited("the batch that reached the tap does not say whose rows it holds")
            return
        self._awaited = ()
        if not noted:
            return
        try:
            self._take(forward_batch, noted, states, final)
        except (CaptureError, rows.AttributionError) as error:
            self.fail(noted, str(error))

    def fail(self, noted: Sequence[rows.NotedRequest], reason: str) -> None:
        """Give up the parts of our requests among `noted`."""
        for request in noted:
            if request.rid is not None:
                self.writer.submit(Failure(self._name(request.rid), reason))

    def fail_awaited(self, reason: str) -> None:
        """Give up, and count, what the forward that was noted last should have brought."""
        if self._awaited:
            self.writer.count(unattributed_batches=1)
            self.fail(self._awaited, reason)
            self._awaited = ()

    def _name(self, rid: protocol.RequestId) -> protocol.PartName:
        return protocol.PartName(rid, self.stage.pp, self.stage.dp, protocol.WRITING)

    def _take(
        self, forward_batch: Any, noted: tuple[rows.NotedRequest, ...], states: Sequence[Any], final: Any
    ) -> None:
        original_mode = getattr(forward_batch, "_original_forward_mode", None)
        # In later releases a field, None unless padding changed the mode; a MIXED batch may be run as EXTEND.
        if getattr(original_mode, "name", rows.PREFILL_MODES[0]) not in rows.PREFILL_MODES:
            raise CaptureError("the lengths of this batch are padding of data-parallel attention")
        lengths, prefixes = forward_batch.extend_seq_lens_cpu, forward_batch.extend_prefix_lens_cpu
        requests = rows.split_rows(noted, lengths, prefixes)
        tensors = self._named_tensors(forward_batch, states, final, int(sum(lengths[: len(noted)])))
        deadline = time.monotonic() + self._max_wait_s
        for request in requests:
            self._hand_over(request, tensors, deadline)

    def _named_tensors(self, forward_batch: Any, states: Sequence[Any], final: Any, n_rows: int) -> dict[str, Any]:
        stage = self.stage
        if len(states) != len(stage.layers):
            raise CaptureError(f"{len(states)} states were captured, {len(stage.layers)} were armed")
        tensors = {
            f"{protocol.HIDDEN_PREFIX}{layer}": state
            for layer, state in zip(stage.layers, states)  # noqa: B905
        }
        if stage.has_final:
            tensors[protocol.FINAL] = final
        if stage.takes_prenorm:
            tensors[protocol.FINAL_PRENORM] = self._norm_input()
        for name, tensor in tensors.items():
            if tensor.dim() != 2 or tensor.shape[0] < n_rows or tensor.shape[1] != stage.hidden_size:
                shape = tuple(tensor.shape)
                raise CaptureError(f"{name} has shape {shape}, not [{n_rows} or more, {stage.hidden_size}]")
            if dtype_name(tensor.dtype) != stage.dtype:
                raise CaptureError(f"{name} is {tensor.dtype}, not {stage.dtype}")
        # The model's own `input_ids` argument is None in multimodal wrappers; the batch always has them.
        return {protocol.INPUT_IDS: forward_batch.input_ids.long(), **tensors}

    def _hand_over(self, request: rows.RequestRows, tensors: dict[str, Any], deadline: float) -> None:
        stage, name = self.stage, self._name(request.rid)
        layout = protocol.part_layout(
            n_tokens=request.n_tokens,
            layers=stage.layers,
            has_final=stage.has_final,
            hidden_size=stage.hidden_size,
            dtype=stage.dtype,
            final=stage.final,
        )
        self.writer.submit(Begin(name, layout, request.first_row))
        for slot in layout.slots:
            tensor = tensors[slot.name][request.batch_row : request.batch_row + request.n_rows]
            # Blocks of at most a quarter of the budget, so that a chunk larger than all of it still passes.
            step = max(1, self.writer.budget.limit // 4 // slot.row_bytes)
            for begin in range(0, request.n_rows, step):
                block = tensor[begin : begin + step]
                n_bytes = block.shape[0] * slot.row_bytes
                if not self._wait_for(n_bytes, deadline):
                    reason = f"the writer fell behind: {n_bytes} bytes were not to be had in {self._max_wait_s} s"
                    self.writer.submit(Failure(name, reason))
                    return
                self.writer.submit(Block(name, slot.name, request.first_row + begin, n_bytes, copy_to_host(block)))
        self.writer.submit(End(name, request.first_row, request.n_rows))

    def _wait_for(self, n_bytes: int, deadline: float) -> bool:
        budget: PendingBudget | NoBudget = self.writer.budget
        if budget.acquire(n_bytes, 0.0):
            return True
        began = time.monotonic()
        had = budget.acquire(n_bytes, max(0.0, deadline - began))
        self.writer.count(waits=1, waited_s=time.monotonic() - began)
        return had


def copy_to_host(tensor: Any) -> Any:
    """Start a copy of `tensor` and return a function that waits for it and returns the bytes.

    A CUDA tensor [rows, ...] is copied to pinned memory in its own stream, so whatever the model writes over it
    afterwards comes after the copy; a CPU tensor is copied at once.
    """
    import torch

    if not tensor.is_cuda:
        host = tensor.detach().clone(memory_format=torch.contiguous_format)
        return lambda: _as_bytes(host)
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor.detach(), non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    device = tensor.device

    def wait() -> memoryview:
        # The writer's thread would otherwise make a context on the first GPU, whichever one this rank uses.
        torch.cuda.set_device(device)
        copied.synchronize()
        return _as_bytes(pinned)

    return wait


def _as_bytes(tensor: Any) -> memoryview:
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
