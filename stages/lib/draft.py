"""The EAGLE-3 draft: one decoder layer that reads the target's aux hidden states and the next token's embedding.

The forward is SGLang's LlamaForCausalLMEagle3 (models/llama_eagle3.py, 0.5.15.post1), and the parameter names are the
checkpoint's own. B packs, S slots, M rows, H hidden size, K boundaries, V target and Vd draft vocabulary.
"""
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from stages.lib.attention import attend, visible


@dataclass
class Shape:
    """What must be known to build a draft; everything about the target's side is copied from the target."""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_aux: int
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float

    as_dict = asdict


def shape_of(about, num_aux, vocab_size, intermediate_size):
    """The sizes of a draft for the target `about` (data/target's manifest): heads, norm and rope are the target's, so that one
    served target fits; width of the MLP and size of the vocabulary are params."""
    return Shape(hidden_size=about["hidden_size"], intermediate_size=intermediate_size, num_heads=about["num_attention_heads"],
                 num_kv_heads=about["num_key_value_heads"], head_dim=about["head_dim"], num_aux=num_aux,
                 target_hidden_size=about["hidden_size"], vocab_size=about["vocab_size"], draft_vocab_size=vocab_size,
                 rms_norm_eps=about["rms_norm_eps"], rope_theta=about["rope_theta"])


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def rope(x_BMnD, position_BM, theta):
    """Neox-style rotation of each head's two halves, angles in fp32."""
    half = x_BMnD.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, device=x_BMnD.device, dtype=torch.float32) / half)
    angle = position_BM[..., None, None].float() * frequency
    cos, sin, (a, b) = angle.cos(), angle.sin(), x_BMnD.float().split(half, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x_BMnD.dtype)


class Attention(nn.Module):
    """Reads [norm(embedding), norm(hidden)], hence the doubled input width."""

    def __init__(self, shape):
        super().__init__()
        self.shape, size = shape, 2 * shape.hidden_size
        self.q_proj = nn.Linear(size, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(size, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(size, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)

    def query(self, x_BMX, position_BM):
        """[B, M, n, D], rotated."""
        return rope(self.q_proj(x_BMX).unflatten(-1, (-1, self.shape.head_dim)), position_BM, self.shape.rope_theta)

    def key_value(self, x_BMX, position_BM):
        """k, v: [B, M, c, D] each, k rotated."""
        k, v = (p(x_BMX).unflatten(-1, (-1, self.shape.head_dim)) for p in (self.k_proj, self.v_proj))
        return rope(k, position_BM, self.shape.rope_theta), v


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), MLP(shape)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            RMSNorm(shape.hidden_size, shape.rms_norm_eps) for _ in range(3))


class Draft(nn.Module):
    def __init__(self, shape, embed):
        """embed: the target's embedding [V, H], frozen and never saved with the draft."""
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.num_aux * shape.target_hidden_size, shape.hidden_size, bias=False)
        self.midlayer = Layer(shape)
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        self.register_buffer("embed", embed, persistent=False)

    def chain(self, batch, steps, rows):
        """Yield the hidden states [B, M, H] of the slots `rows` [B, M] at each TTT step, teacher-forced along the true tokens.

        Every slot of step 0 gives a key and a value, since later queries see them; only `rows` need an output. A
        yielded state is pre-norm; `logits` of it predict x[t+2+k]:

            step k of row t:   h = fc(aux[t]) or the state yielded before,  e = embed(x[t+1+k]),  position t+k
        """
        attention, take = self.midlayer.self_attn, lambda x: x.gather(1, rows[..., None].expand(*rows.shape, x.shape[-1]))
        everywhere = self.fc(batch.aux.to(self.fc.weight.dtype))
        entered = self._enter(everywhere, next_tokens(batch.input_ids, 1))
        key0, value0 = attention.key_value(entered, batch.position)
        mask, position, own = visible(batch.document, rows), batch.position.gather(1, rows), []
        hidden, entered = take(everywhere), take(entered)
        for step in range(steps):
            if step:
                entered = self._enter(hidden, next_tokens(batch.input_ids, 1 + step).gather(1, rows))
                own.append(attention.key_value(entered, position + step))
            attended = attend(attention.query(entered, position + step), key0, value0, mask, own)
            residual = hidden + attention.o_proj(attended)  # hidden before hidden_norm, as the server adds it
            hidden = residual + self.midlayer.mlp(self.midlayer.post_attention_layernorm(residual))
            yield hidden

    def logits(self, state):
        """[..., Vd]. The norm is applied here only: what is fed back is the state before it."""
        return self.lm_head(self.norm(state))

    def _enter(self, hidden, token):
        """[norm(embedding), norm(hidden)]: what the attention reads."""
        embedded = F.embedding(token, self.embed).to(hidden.dtype)
        return torch.cat([self.midlayer.input_layernorm(embedded), self.midlayer.hidden_norm(hidden)], -1)


def next_tokens(input_ids, n):
    """x[t+n] at place t; 0 past the end, where nothing is ever supervised."""
    return F.pad(input_ids[:, n:], (0, min(n, input_ids.shape[1])))


def of_export(folder, embed):
    """A draft of this class (fp32) and its d2t from an exported folder, for batched replay."""
    folder = Path(folder)
    c = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    d2t = weights.pop("d2t")
    size = c["target_hidden_size"]
    draft = Draft(Shape(c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"],
                        weights["fc.weight"].shape[1] // size, size, c["vocab_size"], c["draft_vocab_size"], c["rms_norm_eps"],
                        c["rope_theta"]), embed)
    draft.load_state_dict({name: w.float() for name, w in weights.items()})
    return draft.eval(), d2t


def initialise(draft, init, head, norm, d2t, seed):
    """Fill the weights in place.

    init "target": lm_head and norm start as the target's own, fc passes the last chunk through, so that step 0 begins
    as an early exit of the target. "random": only the seed decides. head [V, H] and norm [H] are the target's; d2t
    [Vd] holds the target id of each draft id minus the draft id.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.02, generator=generator)
        if init == "target":
            size = draft.shape.target_hidden_size
            draft.fc.weight.normal_(0, 0.005, generator=generator)
            draft.fc.weight[:, -size:] += torch.eye(draft.shape.hidden_size, size)
            draft.lm_head.weight.copy_(head[torch.arange(len(d2t)) + d2t])
            draft.norm.weight.copy_(norm)
