"""The served draft, written from the contract and from nothing else: one sequence, a KV cache, plain tensor algebra.

It computes what SGLang's LlamaForCausalLMEagle3 (models/llama_eagle3.py, 0.5.8 to 0.5.23) would compute from a folder,
defaults and quirks included, and shares no code with the trainer's classes, so that an agreement of the two means something.
Against the class itself (0.5.11, 0.5.12.post1, 0.5.15.post1, 0.5.18 on a CPU; names, K, depths, norms, biases, rotary scalings,
heads) its logits differ by less than 1e-6, in the prefill step and a recurrent one.

    row t      h = fc(aux[t]), e = embed(x[t+1]), rotary position t          (rows whose states the target computed)
    attention  q, k, v from [input_layernorm(e), hidden_norm(h)]; causal
    r          h + o_proj(attention)          h as it was before hidden_norm
    out        r + mlp(post_attention_layernorm(r))      a deeper layer i reads hidden_norm(out) alone, without e
    token      argmax lm_head(norm(out)) = i, target id i + d2t[i]
    next       h = out (before norm, after it with norm_output), e = embed(that token), position t+1

fc is skipped, as the server does, where the rows are as wide as the embedding: the recurrent steps, but also one aux state.
n rows of a sequence, m rows of a step, H hidden size, c key/value heads, g query heads per key/value head, D head size.
"""
import copy
import json
import math
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from stages.lib.refusal import Refusal

VERSION = "0.5.15.post1"
TRANSFORMERS_5, DEEPER, NORM_BEFORE_FC = (0, 5, 10), (0, 5, 12), (0, 5, 18)  # the first SGLang releases with each
LEGACY = {"midlayer": "layers.0", "aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


class ServedDraft:
    """What the server holds after loading. The public attributes are the conventions of serving; a search for the
    trainer's conventions changes them on a copy."""

    def __init__(self, draft, embed, head=None, version=VERSION, dtype=torch.float32):
        """draft: a folder, or (config dict, {name: tensor}). embed, head: the target's, [V, H]; the head is only read by a
        draft that ships none. Refusal where the server would fail, or compute with weights that nobody wrote."""
        config, tensors = draft if isinstance(draft, tuple) else read(draft)
        self.version = release(version)
        self.config, c = config, parsed(config, self.version)
        self.dtype, self.eps, self.width = dtype, c.rms_norm_eps, c.hidden_size
        self.heads, self.groups, self.layers = c.num_attention_heads, c.num_key_value_heads, c.num_hidden_layers
        self.head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.frequency, self.rope_scale = rotary(c, self.head_dim)
        new, eagle = self.version >= DEEPER, c.eagle_config if isinstance(getattr(c, "eagle_config", None), dict) else {}
        ids = eagle.get("eagle_aux_hidden_state_layer_ids") if new else None
        self.num_aux = (getattr(c, "num_aux_hidden_states", None) if new else None) or (len(ids) if ids else 3)
        self.state_size = getattr(c, "target_hidden_size", c.hidden_size)

        self.w = {name: w.to(dtype) for name, w in loadable(tensors, self.version).items()}
        shared = self.state_size == c.hidden_size or (not c.tie_word_embeddings and c.draft_vocab_size is None)
        self.embed = embed if shared else self._weight("embed_tokens.weight", "of its own, since target_hidden_size is not hidden_size")
        if c.tie_word_embeddings:  # the checkpoint's own head is dropped; the logits are cut to the draft's size
            self.head = self.embed[:c.draft_vocab_size].to(dtype)
        elif c.draft_vocab_size is None:
            self.head = (embed if head is None else head).to(dtype)
        else:
            self.head = self._weight("lm_head.weight", "(config: draft_vocab_size set, tie_word_embeddings false)")
        d2t = next((w for name, w in tensors.items() if "d2t" in name), None)
        self.target_ids = torch.arange(len(self.head)) if d2t is None else torch.arange(len(d2t)) + d2t.long()
        if len(self.target_ids) < len(self.head):
            raise Refusal(f"d2t has {len(d2t)} entries for {len(self.head)} rows of the head; the server would look up ids beyond it")

        # What a trainer may have done otherwise, as the server does it.
        self.bypass_fc = True              # skip fc where the rows are as wide as the embedding
        self.fc_norm = new and bool(getattr(c, "fc_norm", None) or getattr(c, "use_aux_norm", False))
        self.norm_before_fc = self.version >= NORM_BEFORE_FC and bool(eagle.get("norm_before_fc", getattr(c, "norm_before_fc", False)))
        self.norm_before_residual = False  # no version reads it: the residual is h before hidden_norm
        self.norm_output = new and bool(getattr(c, "norm_output", False))
        self.stride = 1                    # rotary positions per recurrent step
        self.reset()
        self._check_shapes(c)

    def reset(self):
        """Forget the sequence."""
        self.cache, self.out = [(None, None)] * self.layers, None
        return self

    def but(self, **changes):
        """A fresh copy that shares the weights and follows another convention."""
        other = copy.copy(self)
        for name, value in changes.items():
            assert hasattr(other, name), name
            setattr(other, name, value)
        return other.reset()

    @property
    def held(self):
        """Rows in the cache."""
        keys = self.cache[0][0]
        return 0 if keys is None else keys.shape[1]

    def extend(self, next_tokens, aux):
        """Write the KV of n rows from target states and keep the last row's output.

        next_tokens: n target ids, x[t+1] for each row t. aux: [n, K*Ht], rows t behind those already held. Returns out [n, H].
        """
        position = torch.arange(self.held, self.held + len(next_tokens))
        outs = self._forward(self.enter(aux), next_tokens, position, position)
        self.out = outs[-1:]
        return outs

    def propose(self, count):
        """`count` draft tokens (target ids) in a row. Their KV is dropped again: the next `extend` rewrites those rows
        from target states, as the server's draft-extend does."""
        tokens, out, own, row = [], self.out, self.nothing_yet(), torch.tensor([self.held - 1])
        for step in range(1, count + 1):
            tokens.append(self.token(out))
            if step < count:
                out = self.recur(out, tokens[-1:], row, step, own)
        return tokens

    def recur(self, out, tokens, rows, step, own):
        """Recurrent step 1, 2, ... of several chains at once: out [m, H] of the step before, `tokens` [m] and the rows [m]
        that the chains started from. own: the keys and values of their earlier steps, which grow by this one."""
        return self._forward(self.feedback(out), tokens, rows + self.stride * step, rows, own)

    def nothing_yet(self):
        """`own` of chains that have made no step: per layer a list of (keys, values)."""
        return [[] for _ in range(self.layers)]

    def enter(self, aux):
        """[n, H]: what the first layer reads of the target's states [n, K*Ht]."""
        hidden = aux.to(self.dtype)
        if self.bypass_fc and hidden.shape[1] == self.width:
            return hidden
        if self.norm_before_fc:
            hidden = self._norm(hidden, "input_norm.weight")
        if self.fc_norm:
            hidden = torch.cat([self._norm(chunk, f"fc_norm.{i}.weight") for i, chunk in enumerate(hidden.chunk(self.num_aux, 1))], 1)
        weight = self._weight("fc.weight")
        if weight.shape[1] != hidden.shape[1]:
            raise Refusal(f"fc.weight reads {weight.shape[1]} features and the target's states have {hidden.shape[1]}: the server "
                          "stops at the first forward; the draft's layer ids and its fc must agree")
        return hidden @ weight.T + (self._weight("fc.bias") if self._flag("bias") else 0)

    def feedback(self, out):
        return self._norm(out, "norm.weight") if self.norm_output else out

    def logits(self, out):
        """[m, Vd] from pre-norm outputs [m, H]."""
        return self._norm(out, "norm.weight") @ self.head.T

    def token(self, out):
        return int(self.target_ids[self.logits(out)[-1].argmax()])

    def _forward(self, hidden, tokens, position, reach, own=None):
        """out [m, H]. Without `own` the rows join the cache; with it they are chains that see the cache's rows up to
        `reach` [m] and their own earlier steps."""
        embedded = self.embed[torch.as_tensor(tokens)].to(self.dtype)
        for i in range(self.layers):
            at = f"layers.{i}."
            x, residual = self._norm(hidden, at + "hidden_norm.weight"), hidden
            if i == 0:
                residual = x if self.norm_before_residual else hidden
                x = torch.cat([self._norm(embedded, at + "input_layernorm.weight"), x], 1)
            q, k, v = ((x @ self._weight(f"{at}self_attn.{name}_proj.weight").T).unflatten(1, (-1, self.head_dim)) for name in "qkv")
            q, k = self._rotate(q, position), self._rotate(k, position)
            if own is None:
                self.cache[i] = self._grown(self.cache[i], k, v)
            else:
                own[i].append((k, v))
            attended = self._attend(q, *self.cache[i], reach, own[i] if own else [])
            hidden = residual + attended @ self._weight(at + "self_attn.o_proj.weight").T
            if self._flag("attention_bias") or self._flag("bias"):
                hidden = hidden + self._weight(at + "self_attn.o_proj.bias", "(attention_bias or bias is true)")
            y = self._norm(hidden, at + "post_attention_layernorm.weight")
            gate, up = (y @ self._weight(f"{at}mlp.{name}_proj.weight").T for name in ("gate", "up"))
            hidden = hidden + (gate * torch.sigmoid(gate) * up) @ self._weight(at + "mlp.down_proj.weight").T
        return hidden

    @staticmethod
    def _grown(held, k, v):
        """The cache [c, n, D] and the new rows' k, v [m, c, D]."""
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        return (k, v) if held[0] is None else (torch.cat([held[0], k], 1), torch.cat([held[1], v], 1))

    def _attend(self, q, keys, values, reach, own):
        """q [m, c*g, D] over the cached rows 0..reach and the rows' own steps; [m, c*g*D]."""
        q = q.unflatten(1, (self.groups, -1)).permute(1, 2, 0, 3) / math.sqrt(self.head_dim)  # [c, g, m, D]
        scores = q @ keys[:, None].transpose(2, 3)
        scores = scores.masked_fill(torch.arange(keys.shape[1])[None] > reach[:, None], -math.inf)
        side = [(k.transpose(0, 1)[:, None], v.transpose(0, 1)[:, None]) for k, v in own]
        scores = torch.cat([scores, *((q * k).sum(3, keepdim=True) for k, _ in side)], 3).softmax(3)
        out = scores[..., :keys.shape[1]] @ values[:, None]
        for step, (_, v) in enumerate(side):
            out = out + scores[..., keys.shape[1] + step, None] * v
        return out.permute(2, 0, 1, 3).flatten(1)

    def _norm(self, x, name):
        x32 = x.float()
        normed = (x32 / torch.sqrt((x32 * x32).mean(1, keepdim=True) + self.eps)).to(self.dtype)
        return normed * self.w[name] if name in self.w else normed  # a norm that is not in the file keeps its ones

    def _rotate(self, x, position):
        angle = position[:, None].float() * self.frequency
        cos, sin = (torch.cat([f(angle), f(angle)], 1)[:, None] * self.rope_scale for f in (torch.cos, torch.sin))
        size = x.shape[-1]
        turned = torch.cat([-x[..., size // 2:], x[..., : size // 2]], -1)
        return (x.float() * cos + turned.float() * sin).to(self.dtype)

    def _flag(self, key):
        return bool(self.config.get(key, False))

    def _weight(self, name, why=""):
        if name not in self.w:
            raise Refusal(f"the draft has no {name} {why}".rstrip() + f" that SGLang {'.'.join(map(str, self.version))} would read; "
                          "the server computes with what lies in memory there, without a word")
        return self.w[name]

    def _check_shapes(self, c):
        """Every weight of a layer and the head: the server stops at a wrong shape."""
        q, kv, H, mlp = self.heads * self.head_dim, self.groups * self.head_dim, c.hidden_size, c.intermediate_size
        for i in range(self.layers):
            wide = 2 * H if i == 0 else H
            shapes = {"self_attn.q_proj": (q, wide), "self_attn.k_proj": (kv, wide), "self_attn.v_proj": (kv, wide),
                      "self_attn.o_proj": (H, q), "mlp.gate_proj": (mlp, H), "mlp.up_proj": (mlp, H), "mlp.down_proj": (H, mlp)}
            for name, shape in shapes.items():
                self._check(f"layers.{i}.{name}.weight", self._weight(f"layers.{i}.{name}.weight"), shape)
        if "fc.weight" in self.w:
            self._check("fc.weight", self.w["fc.weight"], (H, self.num_aux * self.state_size))
        self._check("the head", self.head, (len(self.head), H))
        self._check("the embedding", self.embed, (len(self.embed), H))

    def _check(self, name, weight, shape):
        if tuple(weight.shape) != shape:
            raise Refusal(f"{name} has shape {list(weight.shape)}; config.json asks for {list(shape)}")


@torch.no_grad()
def matches(served, ids, aux, first, chain, ahead=2):
    """bool [n, chain]: are drafts 0..k of row t the document's x[t+2] .. x[t+2+k]? False past its end.

    All chains of a document in one pass, teacher-forced: a chain that has missed is dead, so its own tokens are the
    document's. ids [n], aux [n, K*Ht]; first: the place of the answer's first token. ahead: 1 for a draft whose labels
    were not shifted, else 2.
    """
    ids, served = torch.as_tensor(ids), served.but()
    right = torch.zeros(len(ids), chain, dtype=torch.bool)
    rows = torch.arange(max(first - 1, 0), max(first - 1, len(ids) - ahead))
    if not len(rows):
        return right
    out, own = served.extend(ids[1:], aux[:len(ids) - 1])[rows], served.nothing_yet()
    for step in range(chain):
        hit = served.target_ids[served.logits(out).argmax(-1)] == ids[rows + ahead + step]
        right[rows[hit], step] = True
        hit &= rows + ahead + step + 1 < len(ids)
        if step + 1 == chain or not hit.any():
            break
        rows, out = rows[hit], out[hit]
        own = [[(k[hit], v[hit]) for k, v in layer] for layer in own]
        out = served.recur(out, ids[rows + 2 + step], rows, step + 1, own)
    return right


def release(version):
    """(0, 5, 15) of "0.5.15.post1"."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if not found:
        raise Refusal(f"{version!r} is no SGLang version; expected one like {VERSION}")
    return tuple(map(int, found.groups()))


def read(folder):
    """(config, tensors) of a draft's folder; of several files those that the index names, as the server's loader does."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {p.name for p in folder.glob("*.safetensors")}
    if not names:
        raise Refusal(f"{folder} has no safetensors file")
    tensors = {}
    for name in sorted(names):
        tensors.update(load_file(folder / name))
    return json.loads((folder / "config.json").read_text()), tensors


def loadable(tensors, version):
    """The tensors that this release finds a place for, by its own names without `model.`; the rest it drops in silence."""
    kept = {}
    for name, tensor in tensors.items():
        if "d2t" in name or "t2d" in name:
            continue
        if version >= DEEPER:
            for legacy, new in LEGACY.items():
                name = name.replace(legacy, new)
        else:
            if name.removeprefix("model.").startswith("layers."):
                continue
            name = name.replace("midlayer.", "layers.0.")
        if name == "lm_head.weight" or not name.endswith("lm_head.weight"):
            kept[name.removeprefix("model.")] = tensor
    return kept


def parsed(config, version):
    """config.json as the server sees it: through transformers' own class, with its defaults. Refusal where it would stop."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig  # here: seconds to import
    c = copy.deepcopy(config)  # the class writes into the dicts that it is given
    if version < TRANSFORMERS_5:  # transformers 4 knew no rope_parameters
        scaling = c.pop("rope_scaling", None) or {"rope_type": "default"}
        c["rope_parameters"] = {**scaling, "rope_theta": c.get("rope_theta", 10000)}
    if "draft_vocab_size" not in c:
        raise Refusal("the draft's config.json has no draft_vocab_size; the server stops at it (null means: the target's own head)")
    if c.get("target_hidden_size", 0) is None:
        raise Refusal("the draft's config.json has target_hidden_size null; the server stops at it: write the target's hidden_size")
    if version < DEEPER and c.get("num_hidden_layers", 1) != 1:
        raise Refusal(f"num_hidden_layers is {c['num_hidden_layers']}; before 0.5.12 the server takes one layer only")
    try:
        parsed = AutoConfig.for_model(c.pop("model_type", None), **c)
    except (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise Refusal(f"transformers cannot read the draft's config.json: {str(error).splitlines()[-1].strip()}") from None
    if getattr(parsed, "hidden_act", "silu") != "silu":
        raise Refusal(f"hidden_act is {parsed.hidden_act!r}; the server takes silu only")
    return parsed


def rotary(c, head_dim):
    """Inverse frequencies [D/2] and the factor on cos and sin, as the server's get_rope forms them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    rope = dict(c.rope_parameters or {"rope_theta": 10000})
    kind = "default" if "mrope_section" in rope else rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", 10000)
    if getattr(c, "partial_rotary_factor", 1) not in (1, None) or not getattr(c, "rope_is_neox_style", True) or theta is None:
        raise Refusal(f"the draft's rotary embedding (theta {theta}, partial or not neox) is not one that this replay computes")
    if kind == "default":
        return 1.0 / float(theta) ** (torch.arange(0, head_dim, 2).float() / head_dim), 1.0
    if kind not in ("linear", "llama3", "yarn"):
        raise Refusal(f"the draft's rope_type is {kind!r}; this replay computes default, linear, llama3 and yarn")
    c.rope_parameters = rope
    frequency, _ = ROPE_INIT_FUNCTIONS[kind](c, "cpu")
    factor = rope.get("factor") or 1.0
    # SGLang's yarn reads attn_factor, never transformers' attention_factor or mscale.
    scale = rope.get("attn_factor", 1) * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0) if kind == "yarn" else 1.0
    return frequency, scale
