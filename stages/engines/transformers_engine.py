"""The target on a CPU through transformers: generate, capture, and the verify pass of the reference verifier.

Tensors: B rows of a batch, L padded length, H hidden size, K boundaries, n tokens of one row.
"""
import functools

import torch
import transformers
from torch.nn import functional as F
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from stages.lib.refusal import Refusal

transformers.utils.logging.disable_progress_bar()

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def grouped_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **_):
    """transformers' attention call for grouped-query models, without copying each key once per query head.

    Its own sdpa path repeats the keys and values whenever there is a mask, a third and more of a batched decode step on 2 cores
    (353 tokens/s with it, 454 without). query [B, n, M, D], key and value [B, c, L, D]; returns [B, M, n, D].
    """
    B, n, M, D = query.shape
    if M > 1:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling,
                                             is_causal=attention_mask is None, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None
    scores = query.view(B, -1, n // key.shape[1], D) @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    return (scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value).view(B, 1, n, D), None


AttentionInterface.register("eyrie_grouped", grouped_attention)
AttentionMaskInterface.register("eyrie_grouped", sdpa_mask)


class Room(DynamicLayer):
    """A layer's keys and values [B, c, L, D] as views of buffers with room for the whole answer.

    transformers' own layer concatenates at each step: every key so far is copied, and the heap of buffers of ever other
    sizes grows to twice what is in use.
    """

    def __init__(self, capacity):
        super().__init__()
        self.capacity = capacity

    def update(self, keys, values, *_, **__):
        start = self.get_seq_length()
        if not start:
            self.lazy_initialization(keys, values)
            self.rooms = [x.new_empty(*x.shape[:2], self.capacity, x.shape[3]) for x in (keys, values)]
        end = start + keys.shape[2]
        for room, new in zip(self.rooms, (keys, values)):
            room[:, :, start:end] = new
        self.keys, self.values = (room[:, :, :end] for room in self.rooms)
        return self.keys, self.values

    def batch_select_indices(self, indices):
        self.rooms = [room[indices] for room in self.rooms]
        self.keys, self.values = (room[:, :, :self.get_seq_length()] for room in self.rooms)


class Engine:
    """One copy of the target in this process."""

    def __init__(self, folder, version, dtype, threads):
        """folder: a verified target folder. version: engine.version, which must be what is installed, since another
        release may compute other bits; None where another engine makes the data and this one is what it is held against.
        threads: fixed, since the order of sums in bf16 depends on it."""
        if version not in (None, transformers.__version__):
            raise Refusal(f"engine.version is {version} but transformers {transformers.__version__} is installed; "
                          "install the locked environment (make env) or change engine.version")
        if dtype not in DTYPES:
            raise Refusal(f"the engine's dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=DTYPES[dtype], local_files_only=True, use_safetensors=True, trust_remote_code=False,
            attn_implementation="eyrie_grouped").eval()
        self.decoder = self.model.get_decoder()
        self.head = self.model.get_output_embeddings()

    @torch.inference_mode()
    def generate(self, prompts, max_new_tokens, temperature, top_p, seeds, stop_ids, tick=lambda n: None):
        """Answers to `prompts` (lists of token ids), decoded together as one batch.

        Greedy at temperature 0; else nucleus sampling with one generator per row, seeded by `seeds[row]`. Returns
        one `(response_ids, finish_reason)` per prompt; a stop id is part of the response. Left padding, so that every
        row decodes at the right end; rows that are done leave the batch. Raises FloatingPointError at logits that are
        not finite.
        """
        length = max(map(len, prompts))
        ids = torch.zeros(len(prompts), length, dtype=torch.long)
        mask = torch.zeros(len(prompts), length, dtype=torch.long)
        for r, prompt in enumerate(prompts):
            ids[r, length - len(prompt):] = torch.tensor(prompt)
            mask[r, length - len(prompt):] = 1
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        cache, rows = DynamicCache(), list(range(len(prompts)))
        cache.layer_class_to_replicate = functools.partial(Room, length + max_new_tokens)
        answers, reasons = [[] for _ in prompts], ["length"] * len(prompts)
        for _ in range(max_new_tokens):
            logits = self.model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
                                use_cache=True, logits_to_keep=1).logits[:, -1].float()
            if not torch.isfinite(logits).all():
                raise FloatingPointError("the target's logits are not finite")
            token = _pick(logits, temperature, top_p, [generators[r] for r in rows])
            for r, t in zip(rows, token.tolist()):
                answers[r].append(t)
                if t in stop_ids:
                    reasons[r] = "stop"
            tick(len(rows))
            going = [i for i, r in enumerate(rows) if reasons[r] != "stop"]
            if not going:
                break
            if len(going) < len(rows):
                index = torch.tensor(going)
                cache.batch_select_indices(index)
                token, mask, positions, rows = token[index], mask[index], positions[index], [rows[i] for i in going]
            ids, positions = token[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        return list(zip(answers, reasons))

    @torch.inference_mode()
    def capture(self, sequences, boundaries):
        """Per sequence of token ids `(aux [n, K*H], last [n, H])` in the engine's dtype.

        Boundary b is what enters layer b (the full residual sum, before that layer's norm); chunks in ascending
        order, as SGLang concatenates them (layers/logits_processor.py:671, 0.5.15.post1). `last` is post-norm: the
        head's input. Right padding under a causal mask leaves the real rows alone.
        """
        ids = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
        for r, sequence in enumerate(sequences):
            ids[r, :len(sequence)] = torch.tensor(sequence)
        with _Taps(self.decoder, boundaries) as taps:
            last_BLH = self.decoder(ids, use_cache=False).last_hidden_state
        aux_BLKH = taps.concatenated()
        return [(aux_BLKH[r, :len(s)], last_BLH[r, :len(s)]) for r, s in enumerate(sequences)]

    @torch.inference_mode()
    def plain_states(self, sequence, boundaries):
        """The same `(aux, last)` for one sequence by transformers' own `output_hidden_states`: what the parity probe
        compares the taps with. Entry b of that list is boundary b for b < number of layers."""
        out = self.decoder(torch.tensor([sequence]), use_cache=False, output_hidden_states=True)
        return torch.cat([out.hidden_states[b][0] for b in boundaries], -1), out.last_hidden_state[0]

    @torch.inference_mode()
    def next_ids(self, last):
        """The target's own argmax after each row of `last [n, H]`: int64 [n]."""
        return self.head(last).argmax(-1)

    @property
    def head_weight(self):
        """[V, H]."""
        return self.head.weight.detach()

    @torch.inference_mode()
    def verify(self, ids, cache, boundaries):
        """Run `ids` (list of n new token ids) behind `cache`: the logits [n, V] in fp32 and aux [n, K*H]. The cache grows by n."""
        with _Taps(self.decoder, boundaries) as taps:
            logits = self.model(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0].float()
        return logits, taps.concatenated()[0]


def of(folder, engine, dtype=None):
    """The Engine that the params section `engine` means; where that is SGLang, the plain forward that it is held against."""
    return Engine(folder, engine.version if engine.name == "transformers" else None, dtype or engine.dtype, engine.threads)


class _Taps:
    """Pre-hooks on the layers whose input is wanted, for the length of one forward. Boundary n is what the final norm reads."""

    def __init__(self, decoder, boundaries):
        self.places, self.boundaries, self.seen, self.handles = [*decoder.layers, decoder.norm], boundaries, {}, []

    def __enter__(self):
        for boundary in self.boundaries:
            def hook(module, args, kwargs, boundary=boundary):
                self.seen[boundary] = (args[0] if args else kwargs["hidden_states"]).clone()
            self.handles.append(self.places[boundary].register_forward_pre_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def concatenated(self):
        return torch.cat([self.seen[b] for b in self.boundaries], -1)


def _pick(logits, temperature, top_p, generators):
    """Next token per row: argmax at temperature 0, else a draw from the smallest set of tokens with mass top_p."""
    if temperature == 0:
        return logits.argmax(-1)
    probabilities, order = (logits / temperature).softmax(-1).sort(-1, descending=True)
    outside = probabilities.cumsum(-1) - probabilities > top_p
    probabilities = probabilities.masked_fill(outside, 0)
    drawn = torch.stack([torch.multinomial(p, 1, generator=g) for p, g in zip(probabilities, generators)])
    return order.gather(-1, drawn)[:, 0]
