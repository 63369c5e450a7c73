"""Inside an EAGLE-3 server: what reaches the draft, in the first real prefill and the first real verify pass.

The report is one JSON file: algorithm, target_class, layers_to_capture (its value), draft_class, hidden_size, fc (its [out, in]),
graphs (do draft passes replay CUDA graphs?), and per step `prefill` and `verify` the draft's forwards in order, {"width", "fc_calls"}.
A healthy chain of k drafts shows K*H with one call of fc in prefill; in verify k-1 recurrent forwards of width H without fc, then the
extension over what was accepted, K*H with one call. A step without any call of fc means that the draft never sees the target's aux
states: a wrong algorithm flag, use_aux_hidden_state false, or K*H equal to H.

A replayed graph runs no Python, so nothing is seen of it: start the server with --disable-prefill-cuda-graph and
--disable-decode-cuda-graph. `graphs` true beside an empty step says that this was forgotten.
"""
from stages.engines.sglang_tap import layers_to_capture
from stages.lib import files

HEALTH = "HEALTH_CHECK"  # the request ids of SGLang's own probes start so (managers/tokenizer_manager.py)


class Watch:
    def __init__(self, report):
        self.path, self.report, self.step_now, self.writes = report, {}, None, False

    def model(self, _, runner):
        """After ModelRunner.init_aux_hidden_state_capture, once for the target and once for the draft."""
        import sglang
        if runner.is_draft_worker:
            self.report.update(draft_class=type(runner.model).__name__, **self._hook(runner.model))
        else:
            self.writes = runner.tp_rank == 0
            self.report.update(
                sglang=sglang.__version__, file=sglang.__file__, algorithm=runner.server_args.speculative_algorithm,
                target_class=type(runner.model).__name__, layers_to_capture=layers_to_capture(runner.model),
                graphs=any(phase.backend != "disabled" for phase in (runner.server_args.cuda_graph_config.prefill,
                                                                     runner.server_args.cuda_graph_config.decode)))
        self._save()

    def step(self, forward, worker, batch, *args, **kwargs):
        """Around EAGLEWorkerV2.forward_batch_generation: the first prefill and the first verify pass that serve a user's request."""
        name = "prefill" if batch.forward_mode.is_extend() or batch.is_extend_in_batch else "verify"
        real = batch.reqs and not any(request.rid.startswith(HEALTH) for request in batch.reqs)
        if not real or name in self.report:
            return forward(worker, batch, *args, **kwargs)
        self.step_now = []
        try:
            return forward(worker, batch, *args, **kwargs)
        finally:
            self.report[name], self.step_now = self.step_now, None
            self._save()

    def _hook(self, draft):
        """Hooks on the draft's fc and on the module that owns it, whose forward takes the states from the batch."""
        body = next((module for module in draft.modules() if hasattr(module, "fc")), None)
        if body is None:
            return {"fc": None}

        def entering(module, args, kwargs):
            if self.step_now is not None:
                batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[2]
                self.step_now.append({"width": batch.spec_info.hidden_states.shape[-1], "fc_calls": 0})

        def called(*_):
            if self.step_now:
                self.step_now[-1]["fc_calls"] += 1

        body.register_forward_pre_hook(entering, with_kwargs=True)
        body.fc.register_forward_hook(called)
        return {"hidden_size": draft.config.hidden_size, "fc": list(body.fc.weight.shape)}

    def _save(self):
        if self.writes:
            files.write_json(self.path, self.report)
