"""The targets of tests/gpu in SGLang's own classes, as far as a CPU goes: their configs are read, every parameter is written."""
import pytest
import torch
from safetensors.torch import load_file

from stages.contract import rules
from tests.contract import sglang_real as real
from tests.gpu import targets

MODULES = {name: real.TARGETS[name][0] for name in targets.ARCHITECTURES}


@pytest.mark.parametrize("name", targets.ARCHITECTURES)
def test_sglang_reads_the_config_and_writes_every_parameter(name, tmp_path):
    real.boot()
    folder = targets.make(name, tmp_path / name)
    about = targets.about(folder)
    read = real.ModelConfig(str(folder), dtype="bfloat16", is_draft_model=False)
    assert read.hf_config.architectures == [name] and read.num_hidden_layers == targets.LAYERS
    assert (read.hidden_size, read.vocab_size) == (about["hidden_size"], about["vocab_size"])
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = real.of_sglang("models." + MODULES[name], name)(read.hf_config)
        for parameter in model.parameters():
            parameter.data.fill_(float("nan") if parameter.is_floating_point() else 0)
        model.load_weights(load_file(folder / "model.safetensors").items())
    finally:
        torch.set_default_dtype(torch.float32)
    unset = [n for n, p in model.named_parameters() if p.isnan().any() and "vision_tower" not in n and "mm_projector" not in n]
    assert unset == []
    ids = rules.ids_to_write(real.VERSION, name, [3, 5, 6], targets.LAYERS)
    model.set_eagle3_layers_to_capture(ids)
