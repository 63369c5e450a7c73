"""The entry point that SGLang loads in each of its processes (group `sglang.srt.plugins`). Inert unless the environment asks:

EYRIE_CAPTURE  {"boundaries": [2, 15, 27], "out": "/folder"}   rows of these boundaries for every request of ours (sglang_tap.py)
EYRIE_WATCH    a file's path                                   what reaches an EAGLE-3 draft, for the live preflight (sglang_watch.py)
"""
import json
import os

CAPTURE, WATCH = "EYRIE_CAPTURE", "EYRIE_WATCH"


def is_inert(environ=None):
    """Does a server that starts with this environment (None: this process's) run SGLang's own code and nothing of ours?"""
    environ = os.environ if environ is None else environ
    return not environ.get(CAPTURE) and not environ.get(WATCH)


def register():
    """SGLang swallows what is raised here, so all refusals wait for the hooks, where they end the server."""
    if is_inert():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # here: an inert plugin imports nothing
    if os.environ.get(CAPTURE):
        from stages.engines.sglang_tap import Tap
        tap = Tap(**json.loads(os.environ[CAPTURE]))
        HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.init_aux_hidden_state_capture", tap.aim, HookType.AFTER)
        HookRegistry.register("sglang.srt.layers.logits_processor.LogitsProcessor.forward", tap.take, HookType.AROUND)
    if os.environ.get(WATCH):
        from stages.engines.sglang_watch import Watch
        watch = Watch(os.environ[WATCH])
        HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.init_aux_hidden_state_capture", watch.model,
                              HookType.AFTER)
        worker = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation"
        HookRegistry.register(worker, watch.step, HookType.AROUND)
