"""Capture on two GPUs: each rank holds a summand of what a layer adds (contract 1.4), and the rows must be the sum, written once."""
import time

import pytest
import torch

from stages.engines import sglang_capture, sglang_rows
from stages.lib import parity
from tests.gpu import servers
from tests.gpu.results import case

BOUNDARIES = [2, 4, 7]
# FlashInfer's fusion, on by itself for DeepSeek's class, and SGLang's own kernels go around NCCL, and need more of the machine
PLAIN = {"enforce-disable-flashinfer-allreduce-fusion": True, "disable-custom-all-reduce": True}


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV3ForCausalLM"])
def test_two_ranks_capture_what_one_does(architecture, folder_of, two_gpus, monkeypatch):
    places, environment = [], sglang_capture.environment
    monkeypatch.setattr(sglang_capture, "environment", lambda boundaries, out: places.append(out) or environment(boundaries, out))
    with case(f"capture-{architecture}-tp2", architecture=architecture, tp=2, boundaries=BOUNDARIES) as figures:
        folder, asked = folder_of(architecture), servers.sequences()
        one, _ = servers.captured("tp1", architecture, folder, BOUNDARIES, asked)
        flags = {**servers.FLAGS, **PLAIN, "tp-size": 2}
        with sglang_capture.session("tp2", folder, servers.engine(architecture, **flags), BOUNDARIES) as (capture, report):
            two = list(capture(asked, [len(ids) // 2 for ids in asked]))
            time.sleep(1)  # a second writer would replace pieces that were read and removed
            figures["left"] = sorted(path.name for path in places[-1].iterdir())
        figures.update(started=True, layers_to_capture=report["layers_to_capture"], tp=report["tp_size"])
        figures.update(servers.compared(two, folder, BOUNDARIES, asked))
        cosines = torch.cat([parity.row_cosines(a[0], b[0], len(BOUNDARIES))[1:] for a, b in zip(one, two)])
        figures["beside_tp1"] = dict(zip(BOUNDARIES, cosines.quantile(0.01, dim=0).tolist()))
        assert report["tp_size"] == 2 and figures["left"] == [sglang_rows.PLUGIN]
        assert min(figures["p1"].values()) > parity.COSINE_P1 and min(figures["beside_tp1"].values()) > parity.COSINE_P1
        assert figures["last"] < parity.LAST_ERROR
