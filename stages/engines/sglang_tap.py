"""Inside the server: capture the asked boundaries and hand the rows of every prefill step over. Speculation stays off.

The place is the logits processor: the one call that sees the post-norm states and the captured ones together, for each prefill step,
on every rank and behind the reductions (0.5.15.post1 models/llama.py:575-590, layers/logits_processor.py:308). The hidden states that
SGLang itself returns are one or the other, and their rows are cut wrongly under prefix hits and chunks.

The prefix cache must be off: rows of a cached prefix never pass through a forward, so they would have to come from another request's
files, which ties requests to each other and to the order in which they ran. Within a request the chunks of a long prefill are put
together by their prefix length.
"""
from pathlib import Path

import torch

from stages.contract import rules
from stages.engines.sglang_rows import PLUGIN, Writer, fail, parse
from stages.lib import files
from stages.lib.refusal import Refusal

LOGITS = 1 << 28  # fp32 logits at a time for next ids: 1 GiB


class Tap:
    def __init__(self, boundaries, out, pending_bytes=2 << 30):
        """boundaries: ascending. out: the hand-off folder. pending_bytes: host memory for rows that are not written yet."""
        self.boundaries, self.out, self.pending_bytes = list(boundaries), Path(out), pending_bytes
        self.writer = None

    def aim(self, _, runner):
        """After ModelRunner.init_aux_hidden_state_capture, before any graph is captured. A Refusal ends the server."""
        try:
            self._aim(runner)
        except Exception as error:
            fail(self.out, error)
            raise

    def _aim(self, runner):
        import sglang
        name, layers = type(runner.model).__name__, runner.model_config.num_hidden_layers
        check_server(runner.server_args, name, sglang.__version__)
        runner.model.set_eagle3_layers_to_capture(rules.ids_to_write(sglang.__version__, name, self.boundaries, layers))
        value = layers_to_capture(runner.model)
        if value is None or sorted(value) != self.boundaries:
            raise Refusal(f"SGLang {sglang.__version__} set layers_to_capture of {name} to {value}, expected {self.boundaries}; the rule "
                          "in stages/contract/rules.py does not hold for this server")
        if runner.tp_rank == 0:  # the states are the same on every rank
            self.writer = Writer(self.out, self.pending_bytes)
            if not runner.dp_rank:
                files.write_json(self.out / PLUGIN, {
                    "sglang": sglang.__version__, "file": sglang.__file__, "model_class": name, "layers_to_capture": value,
                    "num_layers": layers, "tp_size": runner.tp_size, "dtype": str(runner.dtype).removeprefix("torch.")})

    def take(self, forward, processor, input_ids, hidden_states, lm_head, logits_metadata, aux_hidden_states=None, *args, **kwargs):
        """Around LogitsProcessor.forward; logits_metadata is the forward batch."""
        batch = logits_metadata
        if wanted := cuts_of(batch):
            if aux_hidden_states is None or len(aux_hidden_states) != len(self.boundaries):
                error = Refusal(f"a prefill step captured {len(aux_hidden_states or ())} states, expected {len(self.boundaries)} "
                                f"(boundaries {self.boundaries}): this model's layer loop does not reach all of them")
                fail(self.out, error)
                raise error
            next_id = next_ids(processor, hidden_states, lm_head, batch, wanted)  # all ranks: the head is split between them
            if self.writer:
                rows = wanted[-1][-1]
                self.writer.put({"input_ids": batch.input_ids[:rows].int(),
                                 "aux": torch.cat([state[:rows] for state in aux_hidden_states], -1),
                                 "last": hidden_states[:rows].clone(), "next_id": next_id}, wanted)
        return forward(processor, input_ids, hidden_states, lm_head, batch, aux_hidden_states, *args, **kwargs)


def cuts_of(batch):
    """(request, prefix length, first row, last row + 1) for each request of ours in a prefill step; [] for any other step.

        rows      0 1 2 3 4 5 6 7 8         a step of four requests: a chunk of A, then B, then C (not ours), then D, which has its
        request   A A A A B B C C D         20 rows already and decodes (--enable-mixed-chunk; with the overlapped scheduler even
        position  16 . . 19 0 1 0 1 20      a request of no new tokens does, once)            -> (A, 16, 0, 4), (B, 0, 4, 6)
    """
    mode = getattr(batch, "forward_mode", None)
    if mode is None or not mode.is_extend_or_draft_extend_or_mixed() or not getattr(batch, "rids", None):
        return []
    cuts, row = [], 0
    for request, prefix, length in zip(batch.rids, batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu):
        prefix, length = int(prefix), int(length)
        if (asked := parse(request)) and prefix < asked[1]:
            cuts.append((request, prefix, row, row + min(length, asked[1] - prefix)))
        row += length
    return cuts


def next_ids(processor, hidden_states, lm_head, batch, cuts):
    """int32 [rows]: the argmax of the target's own head (scale, soft cap and tensor parallel as SGLang does them) where a request
    wants it, else -1."""
    from sglang.srt.layers.logits_processor import LogitsMetadata
    rows, device = cuts[-1][-1], hidden_states.device
    ids = torch.full((rows,), -1, dtype=torch.int32, device=device)
    ranges = [torch.arange(min(b, a + max(0, parse(request)[0] - prefix)), b) for request, prefix, a, b in cuts]
    index = torch.cat(ranges)
    if device.type == "cuda":  # from pinned memory the copy does not wait for the GPU
        index = index.pin_memory().to(device, non_blocking=True)
    metadata = LogitsMetadata(forward_mode=batch.forward_mode)  # no buffer of the batch's own is written to
    for part in index.split(max(1, LOGITS // processor.vocab_size)):
        if len(part):
            ids[part] = processor._get_logits(hidden_states[part], lm_head, metadata).argmax(-1).int()
    return ids


def layers_to_capture(model):
    """The value that the layer loop reads, wherever the class keeps it (a wrapper's language model); None if it has none."""
    found = [module.layers_to_capture for module in model.modules() if hasattr(module, "layers_to_capture")]
    return list(found[0]) if found else None


def check_server(args, model_class, version):
    """Refuse what would give wrong rows, or rows of some tokens only, without an error."""
    wrong = {
        "the prefix cache is on: cached rows are never computed; start with --disable-radix-cache": not args.disable_radix_cache,
        "speculation is on: start without --speculative-algorithm": args.speculative_algorithm is not None,
        "prefill steps run as CUDA graphs, in which nothing can be taken; start with --disable-prefill-cuda-graph":
            args.cuda_graph_config.prefill.backend != "disabled",
        "pipeline parallel: only the last stage's layers are seen; start with --pp-size 1": args.pp_size > 1,
        "DP attention: a rank holds other rows than its head reads; start without --enable-dp-attention": args.enable_dp_attention,
        "two-batch overlap: its layers are not captured; start without --enable-two-batch-overlap": args.enable_two_batch_overlap,
        f"all-reduce fusion leaves one rank's summand in what {model_class} captures with tp {args.tp_size}; start with "
        "--enforce-disable-flashinfer-allreduce-fusion":
            args.tp_size > 1 and not args.enforce_disable_flashinfer_allreduce_fusion and rules.partial_sums(version, model_class)}
    for reason, applies in wrong.items():
        if applies:
            raise Refusal(f"capture cannot run in this server: {reason}")
