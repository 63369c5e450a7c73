"""SGLang's whole engine on a CPU, in a process of its own: scheduler, chunked prefill, paged attention in plain torch.

Start-up costs about 30 s on two cores. SGLang's processes are started afresh, so the hollow packages come through a sitecustomize
on PYTHONPATH.
"""
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
BOUNDARIES = [2, 5]
SITE = '''\
import importlib.abc, sys
class First(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("sglang", "transformers"):  # transformers asks at its import whether there is a torchvision
            sys.meta_path.remove(self)
            from tests.contract import hollow
            hollow.install()
sys.meta_path.insert(0, First())
'''


def sequences():
    """Token ids of 12 sequences of 1 to 99 tokens; the first three share a prefix of 30."""
    noise = torch.Generator().manual_seed(1)
    prefix = torch.randint(0, 128, (30,), generator=noise).tolist()
    draw = lambda n: torch.randint(0, 128, (n,), generator=noise).tolist()
    return [prefix + draw(n) for n in (1, 10, 25)] + [draw(n) for n in (1, 2, 15, 16, 17, 33, 60, 99, 99)]


def firsts():
    return [len(ids) // 2 for ids in sequences()]


def run(target, tp, folder):
    """Starts a fresh Python that captures `sequences()` of the random model `target` on `tp` ranks; files in `folder`."""
    from stages.engines import sglang_path
    folder = Path(folder)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    environment = sglang_path.plugin_environment(folder / "site")
    done = subprocess.run([sys.executable, "-m", "tests.contract.engine", target, str(tp), folder], cwd=ROOT, text=True, timeout=280,
                          env={**os.environ, **environment, "OMP_NUM_THREADS": "1", "SGLANG_CPU_OMP_THREADS_BIND": "|".join(["0"] * tp)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-4000:]


def main(target, tp, folder):
    from safetensors.torch import save_file

    from stages.engines import sglang_capture
    os.environ.update(sglang_capture.environment(BOUNDARIES, folder / "rows"))
    import sglang
    flags = {name.replace("-", "_"): value for name, value in sglang_capture.flags().items()}
    # chunks of 16 tokens: nearly every sequence is cut, and steps hold pieces of several
    engine = sglang.Engine(model_path=str(model(target, folder / "model")), skip_tokenizer_init=True, dtype="float32", device="cpu",
                           attention_backend="torch_native", sampling_backend="pytorch", grammar_backend="none", mem_fraction_static=0.3,
                           max_total_tokens=2048, chunked_prefill_size=16, enable_mixed_chunk=True, tp_size=tp,
                           log_level="warning", **flags)
    try:
        sglang_capture.loaded(folder / "rows", sglang.__version__, BOUNDARIES)
        send = sglang_capture.in_process(engine)
        for i, rows in enumerate(sglang_capture.capture(send, folder / "rows", sequences(), firsts(), group_tokens=150)):
            save_file(dict(zip(("aux", "last", "next_id"), (t.contiguous() for t in rows))), folder / f"{i}.safetensors")
    finally:
        engine.shutdown()


def model(target, folder):
    """The folder of a random model of the config in sglang_real.TARGETS, weights large enough that argmaxes vary."""
    import transformers

    from tests.contract import sglang_real
    config = sglang_real.TARGETS[target][1]()
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.1)
    made.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
