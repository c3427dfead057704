"""Cases of tap/capture.py on real torch tensors; run by an engine's python, which has torch and no auxtap.

usage: capture_script.py FOLDER_THAT_HOLDS_TAP_AS_tapped SCRATCH; prints {case: "ok" or what went wrong}.
"""

import json
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file

sys.path.insert(0, sys.argv[1])

from tapped import capture, protocol, rows, witness
from tapped.capture import Capture, Stage
from tapped.spool import SpoolDirectory
from tapped.writer import PendingBudget, Writer

HIDDEN = 8
EXTEND = SimpleNamespace(name="EXTEND")
A, B = (protocol.RequestId("00000000", index, 0) for index in (0, 1))


class Bench:
    """A spool, a writer and a capture of two layers and the final state."""

    def __init__(
        self, scratch, *, dtype="F32", limit=1 << 20, max_wait_s=5.0, start=True, has_final=True, final="post-norm"
    ):
        scratch.mkdir(mode=0o700, parents=True)
        self.folder = scratch
        name = protocol.descriptor_name("h", 0, 0)
        self.stats_file = scratch / protocol.stats_name(name)
        self.writer = Writer(SpoolDirectory(scratch), name, "nonce", PendingBudget(limit))
        if start:
            self.writer.start()
        self.capture = Capture(Stage(0, 0, (2, 5), has_final, HIDDEN, dtype, final), self.writer, max_wait_s)

    def batch(self, requests, padding=0, **more):
        """Return a ForwardBatch as the tap sees it: (rid, prompt length, prefix, rows) for each request."""
        noted = tuple(rows.NotedRequest(rid, n_tokens) for rid, n_tokens, _, _ in requests)
        total = sum(n for _, _, _, n in requests) + padding
        batch = SimpleNamespace(
            forward_mode=EXTEND,
            extend_seq_lens_cpu=[n for _, _, _, n in requests],
            extend_prefix_lens_cpu=[first for _, _, first, _ in requests],
            input_ids=torch.arange(total),
            _auxtap=noted,
            **more,
        )
        self.capture.expect(noted, prefill=True)
        return batch

    def stop(self):
        self.writer.stop()
        return protocol.TapStats.from_json(json.loads(self.stats_file.read_text()))

    def ready(self, rid):
        return load_file(self.folder / f"{rid}.pp0.dp0.ready")

    def reason(self, rid):
        return json.loads((self.folder / f"{rid}.pp0.dp0.failed").read_text())["reason"]


def states(n_rows, dtype=torch.float32):
    return [torch.randn(n_rows, HIDDEN).to(dtype) for _ in range(3)]


def case_rows_of_two_requests_and_padding(scratch):
    bench = Bench(scratch)
    two, five, final = states(9)
    bench.capture.take(bench.batch([(A, 4, 0, 4), (B, 3, 0, 3)], padding=2), [two, five], final)
    stats = bench.stop()
    assert stats.parts_ready == 2
    assert stats.errors == 0
    part = bench.ready(B)
    assert part["input_ids"].tolist() == [4, 5, 6]
    assert torch.equal(part["hidden.2"], two[4:7])
    assert torch.equal(part["hidden.5"], five[4:7])
    assert torch.equal(part["final"], final[4:7])


def case_what_the_model_overwrites_later_does_not_matter(scratch):
    bench = Bench(scratch)
    two, five, final = states(4)
    kept = two.clone()
    bench.capture.take(bench.batch([(A, 4, 0, 4)]), [two, five], final)
    two.zero_()
    bench.stop()
    assert torch.equal(bench.ready(A)["hidden.2"], kept)


def case_chunks_are_stitched(scratch):
    bench = Bench(scratch, dtype="BF16")
    two, five, final = states(10, torch.bfloat16)
    for first, last in ((0, 4), (4, 8), (8, 10)):
        batch = bench.batch([(A, 10, first, last - first)])
        bench.capture.take(batch, [two[first:last], five[first:last]], final[first:last])
    bench.stop()
    assert torch.equal(bench.ready(A)["hidden.5"], five)
    assert bench.ready(A)["final"].dtype == torch.bfloat16


def case_a_witness_digests_what_a_writer_writes(scratch):
    bench = Bench(scratch)
    other = Bench(scratch.with_name("witness"))
    other.capture.writer = witness.Witness(SpoolDirectory(other.folder), "nonce", 3)
    two, five, final = states(10)
    for first, last in ((0, 4), (4, 10)):
        for each in (bench, other):
            taken = [two[first:last], five[first:last]]
            each.capture.take(each.batch([(A, 10, first, last - first)]), taken, final[first:last])
    bench.stop()
    other.writer.stop()
    assert not list(other.folder.glob("*.ready"))
    name = protocol.PartName(A, 0, 0, protocol.READY)
    record = json.loads((other.folder / protocol.witness_name(name, 3)).read_text())
    seen = protocol.WitnessRecord.from_json(record)
    assert (seen.tp, seen.n_rows, set(seen.squares)) == (3, 10, {"hidden.2", "hidden.5", "final"})
    for slot, tensor in bench.ready(A).items():
        digest = protocol.new_digest(seen.digests[slot].partition(":")[0])
        digest.update(tensor.numpy().tobytes())
        assert seen.digests[slot].endswith(digest.hexdigest()), slot
    assert abs(seen.squares["final"] - float(final.double().square().sum())) < 1e-6


def case_columns_of_a_wider_tensor(scratch):
    bench = Bench(scratch)
    wide = torch.randn(4, 3 * HIDDEN)
    two, five, final = wide.split(HIDDEN, dim=1)
    bench.capture.take(bench.batch([(A, 4, 0, 4)]), [two, five], final)
    bench.stop()
    assert torch.equal(bench.ready(A)["final"], final)


def case_a_chunk_larger_than_the_budget_passes(scratch):
    bench = Bench(scratch, limit=4 * HIDDEN * 4)
    two, five, final = states(100)
    bench.capture.take(bench.batch([(A, 100, 0, 100)]), [two, five], final)
    stats = bench.stop()
    assert torch.equal(bench.ready(A)["final"], final)
    assert stats.peak_pending_bytes <= 4 * HIDDEN * 4


def case_a_writer_that_falls_behind_fails_the_sample_only(scratch):
    bench = Bench(scratch, limit=4 * HIDDEN * 4, max_wait_s=0.05, start=False)
    began = time.monotonic()
    for rid in (A, B):
        bench.capture.take(bench.batch([(rid, 9, 0, 9)]), states(9)[:2], states(9)[0])
    assert time.monotonic() - began < 2
    bench.writer.start()
    stats = bench.stop()
    assert "fell behind" in bench.reason(A)
    assert "fell behind" in bench.reason(B)
    assert stats.waits == 2
    assert stats.parts_failed == 2


def case_the_wait_is_bounded_for_the_whole_forward(scratch):
    bench = Bench(scratch, limit=4 * HIDDEN * 4, max_wait_s=0.2, start=False)
    many = [(protocol.RequestId("00000000", index, 0), 9, 0, 9) for index in range(20)]
    began = time.monotonic()
    bench.capture.take(bench.batch(many), states(180)[:2], states(180)[0])
    assert time.monotonic() - began < 1, "20 requests must not wait 20 times"
    bench.writer.start()
    bench.stop()


def case_missing_states_are_a_failure(scratch):
    bench = Bench(scratch)
    bench.capture.take(bench.batch([(A, 4, 0, 4)]), states(4)[:1], states(4)[0])
    bench.stop()
    assert "1 states were captured, 2 were armed" in bench.reason(A)


def case_too_few_rows_are_a_failure(scratch):
    bench = Bench(scratch)
    bench.capture.take(bench.batch([(A, 4, 0, 4)]), states(3)[:2], states(3)[0])
    bench.stop()
    assert "shape (3, 8)" in bench.reason(A)


def case_another_dtype_is_a_failure(scratch):
    bench = Bench(scratch)
    half = states(4, torch.float16)
    bench.capture.take(bench.batch([(A, 4, 0, 4)]), half[:2], half[0])
    bench.stop()
    assert "torch.float16" in bench.reason(A)


def case_padded_lengths_of_dp_attention_are_refused(scratch):
    bench = Bench(scratch)
    batch = bench.batch([(A, 4, 0, 4)], _original_forward_mode=SimpleNamespace(name="IDLE"))
    bench.capture.take(batch, states(4)[:2], states(4)[0])
    bench.stop()
    assert "padding of data-parallel attention" in bench.reason(A)


def case_a_batch_that_lost_its_note_is_counted(scratch):
    bench = Bench(scratch)
    batch = bench.batch([(A, 4, 0, 4)])
    del batch._auxtap
    bench.capture.take(batch, states(4)[:2], states(4)[0])
    stats = bench.stop()
    assert stats.unattributed_batches == 1
    assert "does not say whose rows" in bench.reason(A)


def without_note(batch, rids):
    """Return a batch as the eager runner copies it: the attribute is lost, the field is not."""
    del batch._auxtap
    batch.rids = [str(rid) for rid in rids]
    return batch


def case_a_copied_batch_is_known_by_its_rids(scratch):
    bench = Bench(scratch)
    batch = without_note(bench.batch([(A, 4, 0, 4)]), [A])
    captured = states(4)
    bench.capture.take(batch, captured[:2], captured[0])
    stats = bench.stop()
    assert (stats.unattributed_batches, stats.parts_ready) == (0, 1)
    assert bench.ready(A)


def case_a_copied_batch_of_other_requests_is_counted(scratch):
    bench = Bench(scratch)
    batch = without_note(bench.batch([(A, 4, 0, 4)]), [B])
    bench.capture.take(batch, states(4)[:2], states(4)[0])
    stats = bench.stop()
    assert (stats.unattributed_batches, stats.parts_ready) == (1, 0)
    assert "does not say whose rows" in bench.reason(A)


def case_a_copied_batch_of_ours_that_was_never_noted_is_counted(scratch):
    bench = Bench(scratch)
    bench.capture.expect((), prefill=True)
    batch = SimpleNamespace(forward_mode=EXTEND, rids=[str(A)])
    bench.capture.take(batch, (), None)
    assert bench.stop().unattributed_batches == 1


def case_decode_rows_run_as_a_prefill_are_nobodys(scratch):
    bench = Bench(scratch)
    bench.capture.expect((), prefill=False)
    bench.capture.take(SimpleNamespace(forward_mode=EXTEND, rids=[str(A)]), (), None)
    stats = bench.stop()
    assert (stats.unattributed_batches, stats.parts_ready, stats.errors) == (0, 0, 0)


def case_packed_states_are_split_in_the_order_of_the_layers(scratch):
    first, second = torch.zeros(3, 8), torch.ones(3, 8)
    packed = torch.cat([first, second], dim=1)
    one, two = capture.unpack_states(packed, 2, 8)
    assert torch.equal(one, first) and torch.equal(two, second)
    packer = type("Packer", (list,), {"finalize": lambda self: packed})([0, 1])
    assert torch.equal(capture.unpack_states(packer, 2, 8)[1], second)
    assert capture.unpack_states(None, 2, 8) == capture.unpack_states([], 2, 8) == ()
    for n_layers in (0, 1, 3):
        try:
            capture.unpack_states(packed, n_layers, 8)
        except capture.CaptureError as error:
            assert "packed states" in str(error)
        else:
            raise AssertionError(n_layers)


def case_a_forward_that_never_reaches_the_tap_is_counted(scratch):
    bench = Bench(scratch)
    bench.batch([(A, 4, 0, 4)])
    bench.capture.expect((), prefill=False)
    stats = bench.stop()
    assert stats.unattributed_batches == 1
    assert "never reached the tap" in bench.reason(A)


class FusedRMSNorm(torch.nn.Module):  # type: ignore[misc]
    """Adds and normalises in place, as the fused kernels do."""

    def forward(self, x, residual=None):
        if residual is None:
            return x.zero_()
        residual.add_(x)
        x.copy_(residual * 2)
        return x, residual


class LayerNorm(FusedRMSNorm):
    """Takes a residual and may not add it."""


def hooked(capture, norm):
    norm.register_forward_pre_hook(
        lambda norm, inputs, named: capture.keep_norm_input(norm, (*inputs, *named.values())), with_kwargs=True
    )
    return norm


def case_what_the_final_norm_gets_is_taken_before_it_is_overwritten(scratch):
    bench = Bench(scratch, final="both")
    norm = hooked(bench.capture, FusedRMSNorm())
    two, five, _ = states(9)
    hidden, residual, _ = states(9)
    whole = hidden + residual
    batch = bench.batch([(A, 4, 0, 4), (B, 3, 0, 3)], padding=2)
    final, _ = norm(hidden, residual)
    bench.capture.take(batch, [two, five], final)
    stats = bench.stop()
    assert (stats.parts_ready, stats.errors) == (2, 0)
    assert list(bench.ready(B)) and torch.equal(bench.ready(B)["final_prenorm"], whole[4:7])
    assert torch.equal(bench.ready(A)["final_prenorm"], whole[:4])
    assert torch.equal(bench.ready(A)["final"], whole[:4] * 2)


def case_a_norm_of_one_state_and_no_final_after_it(scratch):
    bench = Bench(scratch, final="pre-norm")
    norm = hooked(bench.capture, LayerNorm())
    two, five, hidden = states(4)
    kept = hidden.clone()
    batch = bench.batch([(A, 4, 0, 4)])
    bench.capture.take(batch, [two, five], norm(hidden))
    bench.stop()
    assert torch.equal(bench.ready(A)["final_prenorm"], kept)
    assert "final" not in bench.ready(A)


def case_chunks_before_the_norm_are_stitched(scratch):
    bench = Bench(scratch, final="both", dtype="BF16")
    norm = hooked(bench.capture, FusedRMSNorm())
    two, five, hidden = states(10, torch.bfloat16)
    residual = torch.randn(10, HIDDEN).bfloat16()
    whole = hidden + residual
    for first, last in ((0, 4), (4, 8), (8, 10)):
        batch = bench.batch([(A, 10, first, last - first)])
        final, _ = norm(hidden[first:last], residual=residual[first:last])
        bench.capture.take(batch, [two[first:last], five[first:last]], final)
        # A decode between two chunks calls the norm as well.
        bench.capture.expect((), prefill=False)
        norm(torch.ones(1, HIDDEN).bfloat16(), torch.ones(1, HIDDEN).bfloat16())
    bench.stop()
    assert torch.equal(bench.ready(A)["final_prenorm"], whole)


def case_a_final_norm_that_is_not_called_once_is_a_failure(scratch):
    bench = Bench(scratch, final="both")
    norm = hooked(bench.capture, FusedRMSNorm())
    for rid, calls in ((A, 0), (B, 2)):
        two, five, hidden = states(4)
        batch = bench.batch([(rid, 4, 0, 4)])
        for _ in range(calls):
            norm(hidden, hidden.clone())
        bench.capture.take(batch, [two, five], hidden)
        bench.writer.submit(capture.End(bench.capture._name(rid), 0, 0))
    bench.stop()
    assert "called 0 times" in bench.reason(A)
    assert "called 2 times" in bench.reason(B)


def case_a_norm_that_may_not_add_its_residual_is_refused(scratch):
    bench = Bench(scratch, final="both")
    batch = bench.batch([(A, 4, 0, 4)])
    for norm, inputs, text in (
        (LayerNorm(), states(4)[:2], "adds its residual"),
        (FusedRMSNorm(), states(4), "3 arguments"),
        (FusedRMSNorm(), ["handle"], "1 arguments"),
    ):
        try:
            bench.capture.keep_norm_input(norm, inputs)
        except capture.CaptureError as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)
    bench.capture.take(batch, states(4)[:2], states(4)[0])
    bench.stop()
    assert "called 0 times" in bench.reason(A)


def case_foreign_requests_leave_nothing(scratch):
    bench = Bench(scratch)
    bench.capture.take(bench.batch([(None, 4, 0, 4)]), states(4)[:2], states(4)[0])
    stats = bench.stop()
    assert stats.bytes_written == 0
    assert sorted(path.name for path in scratch.iterdir()) == [bench.stats_file.name]


def main():
    results = {}
    for name, case in sorted(globals().items()):
        if name.startswith("case_"):
            try:
                case(Path(sys.argv[2]) / name)
                results[name] = "ok"
            except Exception:
                results[name] = traceback.format_exc()
    print(json.dumps(results))


main()
