"""The served draft, written from the contract and from nothing else: one sequence, a KV cache, plain tensor algebra.

It reads an exported folder as SGLang 0.5.15.post1 does (models/llama_eagle3.py) and shares no code with the trainer's
classes, so that an agreement of the two means something.

    row t      h = fc(aux[t]), e = embed(x[t+1]), rotary position t          (rows whose states the target computed)
    attention  q, k, v from [input_layernorm(e), hidden_norm(h)]; causal
    r          h + o_proj(attention)          h as it was before hidden_norm
    out        r + mlp(post_attention_layernorm(r))
    token      argmax lm_head(norm(out)) = i, target id i + d2t[i]
    next       h = out (before norm), e = embed(that token), position t+1
"""
import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file

PREFIX = "midlayer."


class ServedDraft:
    def __init__(self, folder, embed, dtype=torch.float32):
        """folder: config.json and model.safetensors. embed: the target's embedding [V, H]."""
        self.config = json.loads((Path(folder) / "config.json").read_text())
        weights = {name: w if w.dtype == torch.int64 else w.to(dtype)
                   for name, w in load_file(Path(folder) / "model.safetensors").items()}
        self.d2t = weights.pop("d2t")
        self.w, self.embed, self.dtype = weights, embed, dtype
        self.keys = self.values = None
        self.out = None

    def extend(self, next_tokens, aux):
        """Write the KV of n rows from target states and keep the last row's output.

        next_tokens: n target ids, x[t+1] for each row t. aux: [n, K*H], rows t behind those already held. Returns out [n, H].
        """
        start = 0 if self.keys is None else self.keys.shape[1]
        hidden = aux.to(self.dtype) @ self.w["fc.weight"].T
        outs, self.keys, self.values = self._layer(hidden, next_tokens, start, self.keys, self.values)
        self.out = outs[-1:]
        return outs

    def propose(self, count):
        """`count` draft tokens (target ids) in a row. Their KV is dropped again: the next `extend` rewrites those rows
        from target states, as the server's draft-extend does."""
        tokens, out, keys, values = [], self.out, self.keys, self.values
        for step in range(count):
            tokens.append(self.token(out))
            if step + 1 < count:
                out, keys, values = self._layer(out, tokens[-1:], keys.shape[1], keys, values)
        return tokens

    def recur(self, token):
        """One recurrent step behind the held rows: out [1, H] for the last row's own output and `token`. Nothing is kept."""
        return self._layer(self.out, [token], self.keys.shape[1], self.keys, self.values)[0]

    def logits(self, out):
        """[n, Vd] from pre-norm outputs [n, H]."""
        return self._norm(out, "norm.weight") @ self.w["lm_head.weight"].T

    def token(self, out):
        index = int(self.logits(out)[-1].argmax())
        return index + int(self.d2t[index])

    def _layer(self, hidden, tokens, start, keys, values):
        w, c = self.w, self.config
        n, groups, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        embedded = self.embed[torch.tensor(tokens)].to(self.dtype)
        x = torch.cat([self._norm(embedded, PREFIX + "input_layernorm.weight"), self._norm(hidden, PREFIX + "hidden_norm.weight")], 1)
        position = torch.arange(start, start + len(tokens))
        q = self._rotate((x @ w[PREFIX + "self_attn.q_proj.weight"].T).view(-1, n, size), position)
        k = self._rotate((x @ w[PREFIX + "self_attn.k_proj.weight"].T).view(-1, groups, size), position)
        v = (x @ w[PREFIX + "self_attn.v_proj.weight"].T).view(-1, groups, size)
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        keys = k if keys is None else torch.cat([keys, k], 1)
        values = v if values is None else torch.cat([values, v], 1)
        heads = []
        for head in range(n):
            group = head // (n // groups)
            scores = q[:, head] @ keys[group].T / math.sqrt(size)
            future = torch.arange(keys.shape[1])[None] > position[:, None]
            heads.append(scores.masked_fill(future, -math.inf).softmax(1) @ values[group])
        residual = hidden + torch.cat(heads, 1) @ w[PREFIX + "self_attn.o_proj.weight"].T
        y = self._norm(residual, PREFIX + "post_attention_layernorm.weight")
        gate, up = y @ w[PREFIX + "mlp.gate_proj.weight"].T, y @ w[PREFIX + "mlp.up_proj.weight"].T
        return residual + (gate * torch.sigmoid(gate) * up) @ w[PREFIX + "mlp.down_proj.weight"].T, keys, values

    def _norm(self, x, name):
        x32 = x.float()
        return (x32 / torch.sqrt((x32 * x32).mean(1, keepdim=True) + self.config["rms_norm_eps"])).to(self.dtype) * self.w[name]

    def _rotate(self, x, position):
        size = x.shape[-1]
        angle = position[:, None].float() / self.config["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
        cos, sin = (torch.cat([f(angle), f(angle)], 1)[:, None] for f in (torch.cos, torch.sin))
        turned = torch.cat([-x[..., size // 2:], x[..., : size // 2]], -1)
        return (x.float() * cos + turned.float() * sin).to(self.dtype)
