"""What SGLang's own ModelConfig reads from a draft's config.json: its defaults are silent."""
import json

import pytest
import torch

from tests.contract import golden, sglang_real as real

get_rope_config = real.of_sglang("utils.hf_transformers.common", "get_rope_config")


def read(folder, change, **more):
    real.boot()
    config, _ = golden.healthy()
    (folder / "config.json").write_text(json.dumps({k: v for k, v in {**config, **change}.items() if v is not golden.ABSENT}))
    return real.ModelConfig(model_path=str(folder), is_draft_model=True, **more)


@pytest.mark.parametrize("change,dtype", [({"torch_dtype": golden.ABSENT}, torch.float16), ({"torch_dtype": "float32"}, torch.float16),
                                          ({"torch_dtype": "bfloat16"}, torch.bfloat16), ({"torch_dtype": "float16"}, torch.float16),
                                          ({"torch_dtype": golden.ABSENT, "dtype": "bfloat16"}, torch.bfloat16)])
def test_dtype_absent_or_float32_becomes_float16(tmp_path, change, dtype):
    assert read(tmp_path, change).dtype == dtype


def test_dtype_of_the_launch_reaches_the_draft(tmp_path):
    assert read(tmp_path, {"torch_dtype": "bfloat16"}, dtype="float16").dtype == torch.float16


@pytest.mark.parametrize("change,theta", [
    ({"rope_theta": golden.ABSENT}, 10000), ({"rope_theta": 3e5}, 3e5),
    ({"rope_theta": golden.ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
    ({"rope_theta": 3e5, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5)])  # rope_parameters wins
def test_theta_absent_becomes_10000(tmp_path, change, theta):
    assert get_rope_config(read(tmp_path, change).hf_config)[0] == theta


def test_rope_scaling_keeps_the_theta_beside_it(tmp_path):
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 128}
    theta, rope = get_rope_config(read(tmp_path, {"rope_theta": 5e5, "rope_scaling": llama3}).hf_config)
    assert theta == 5e5 and rope["rope_type"] == "llama3" and rope["factor"] == 8.0


def test_fewer_positions_than_the_target_s_context_end_the_server(tmp_path, monkeypatch):
    assert read(tmp_path, {}, context_length=256).context_len == 256
    with pytest.raises(ValueError, match="greater than the derived context_length"):
        read(tmp_path, {}, context_length=257)
    monkeypatch.setenv("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")
    assert read(tmp_path, {}, context_length=257).context_len == 257


@pytest.mark.parametrize("key,value", [("rms_norm_eps", 1e-6), ("intermediate_size", 11008), ("max_position_embeddings", 2048),
                                       ("attention_bias", False), ("tie_word_embeddings", False), ("vocab_size", 32000),
                                       ("hidden_act", "silu")])
def test_an_absent_key_takes_llama_s_default(tmp_path, key, value):
    assert getattr(read(tmp_path, {key: golden.ABSENT}).hf_config, key) == value
