"""Planted faults in real states and real drafts: each is named, with its figures, and nothing else is."""
import dataclasses

import pytest
import torch
import transformers
from safetensors.torch import load_file

from stages.contract import probes, states
from stages.contract.forward import ServedDraft, matches, read
from stages.engines.transformers_engine import Engine
from stages.lib import draft as drafts, files, shards, verifier
from tests.healthy import healthy, tiny_target


@pytest.fixture
def run(healthy_run):
    return healthy_run


def documents(run, count=6):
    """The first documents of the run as a stranger would hand them in."""
    held = shards.load(run.states)
    made = []
    for i, (prompt, response) in enumerate(run.answers[:count]):
        t = held.document(i)
        made.append(states.Document(f"row{i}", prompt + response, t["aux"], t["last"], t["loss_mask"], len(prompt)))
    return made


def changed(docs, only=None, **fields):
    """Copies with some fields replaced: each a function of the document."""
    return [dataclasses.replace(d, **{k: f(d) for k, f in fields.items()}) if only is None or i in only else d for i, d in enumerate(docs)]


def found(run, docs, expected=None, engine=None):
    return list(states.states(docs, engine or run.engine, expected or run.boundaries))


def captured(run, docs, boundaries):
    return [aux for aux, _ in (run.engine.capture([d.ids], boundaries)[0] for d in docs)]


def only(found, code):
    assert [c for c, _ in found] == [code], found
    return found[0][1]


def test_the_runs_own_states_have_no_fault(run):
    assert list(states.of_states(run.states, run.engine, run.traces, 8)) == [] and found(run, documents(run)) == []


def test_every_boundary_is_identified_also_in_8_bits(run):
    docs = documents(run)
    everything = list(range(run.layers + 1))
    rows = torch.cat([a[1:] for a in captured(run, docs, everything)]).unflatten(1, (len(everything), -1))
    for b in everything:
        for dtype in ("float32", "bfloat16", "fp8"):
            chunk = states.identify(shards.unpack(shards.pack(rows[:, b], 1, dtype)), rows)
            assert chunk.found and chunk.nearest == b and (chunk.rows < chunk.limit).all()


@pytest.mark.parametrize("offset, words", [(-1, "all chunks are 1 early"), (1, "all chunks are 1 late")])
def test_an_offset_of_all_chunks_is_said_as_one(run, offset, words):
    docs = documents(run)
    aux = dict(zip((d.name for d in docs), captured(run, docs, [b + offset for b in run.boundaries])))
    evidence = only(found(run, changed(docs, aux=lambda d: aux[d.name])), "EY-STATE-02")
    assert words in evidence and f"chunk 0 is boundary {run.boundaries[0] + offset}" in evidence


def test_one_wrong_chunk_is_named(run):
    docs = documents(run)
    aux = dict(zip((d.name for d in docs), captured(run, docs, [1, 4, 5])))
    evidence = only(found(run, changed(docs, aux=lambda d: aux[d.name])), "EY-STATE-02")
    assert evidence.startswith("chunk 1 is boundary 4") and "all chunks" not in evidence


def test_another_order_is_not_called_an_offset(run):
    docs = documents(run)
    swapped = changed(docs, aux=lambda d: torch.cat(d.aux.chunk(3, 1)[::-1], 1))
    assert "[5, 3, 1]" in only(found(run, swapped), "EY-STATE-03")


def test_the_post_norm_state_as_last_chunk_is_named(run):
    docs = documents(run)
    evidence = only(found(run, changed(docs, aux=lambda d: torch.cat([*d.aux.chunk(3, 1)[:2], d.last], 1))), "EY-STATE-02")
    assert "chunk 2 is the post-norm last state" in evidence


@pytest.mark.parametrize("shift, words", [(1, "t-1"), (-1, "t+1")])
def test_shifted_rows_are_said_to_be_shifted(run, shift, words):
    docs = documents(run)
    assert f"row t holds the states of token {words}" in only(found(run, changed(docs, aux=lambda d: d.aux.roll(shift, 0))), "EY-STATE-07")
    one = only(found(run, changed(docs, only=[3], aux=lambda d: d.aux.roll(shift, 0))), "EY-STATE-07")
    assert "1 of 6 documents" in one and "row3" in one and f"(row t holds token {words})" in one


def test_corrupted_rows_of_some_documents_are_named(run):
    docs = documents(run)
    def torn(d):
        aux = d.aux.clone()
        aux[10:15] = docs[0].aux[10:15]
        return aux
    evidence = only(found(run, changed(docs, only=[2, 4], aux=torn)), "EY-STATE-07")
    assert "row2: 5 of 31 rows, 10 to 14" in evidence and "row4" in evidence and "row1" not in evidence


def test_states_of_another_target_are_no_offset(run, tmp_path):
    other = Engine(tiny_target(tmp_path, seed=9), transformers.__version__, "float32", 1)
    codes = [c for c, _ in found(run, documents(run), engine=other)]
    assert "EY-STATE-11" in codes and not {"EY-STATE-02", "EY-STATE-03", "EY-STATE-07"} & set(codes)


def test_rotated_states_are_another_basis(run):
    rotation = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(0)))[0]
    docs = changed(documents(run), aux=lambda d: (d.aux.unflatten(1, (3, -1)) @ rotation).flatten(1))
    evidence = only(found(run, docs), "EY-STATE-11")
    assert evidence.count("no boundary of this target") == 3


def test_noise_on_every_row_is_another_precision_and_no_corruption(run):
    docs, noise = documents(run), torch.Generator().manual_seed(1)
    shaken = changed(docs, aux=lambda d: d.aux + 0.2 * d.aux.std(0) * torch.randn(d.aux.shape, generator=noise))
    assert "another precision" in only(found(run, shaken), "EY-STATE-11")


@pytest.mark.parametrize("what", ["pre-norm", "normed twice", "neither"])
def test_a_last_state_of_another_kind_is_named(run, what):
    docs = documents(run)
    if what == "pre-norm":
        before = dict(zip((d.name for d in docs), captured(run, docs, [run.layers])))
        evidence = only(found(run, changed(docs, last=lambda d: before[d.name])), "EY-STATE-04")
    elif what == "normed twice":
        with torch.inference_mode():
            evidence = only(found(run, changed(docs, last=lambda d: run.engine.decoder.norm(d.last))), "EY-STATE-04")
    else:
        evidence = only(found(run, changed(docs, last=lambda d: d.last.roll(1, 1))), "EY-STATE-04")
    assert ("nor is it" if what == "neither" else f"it is {what}") in evidence


def test_answers_that_the_target_does_not_give_are_seen(run):
    docs = documents(run)
    foreign = [d.ids[:d.first] + [(t * 7 + 3) % 200 for t in d.ids[d.first:]] for d in docs]
    docs = [dataclasses.replace(d, ids=ids, aux=run.engine.capture([ids], run.boundaries)[0][0], last=None)
            for d, ids in zip(docs, foreign)]
    assert "not its own greedy ones" in only(found(run, docs), "EY-STATE-05")


def test_missing_rows_and_values_that_are_not_finite_are_seen_first(run):
    docs = documents(run)
    assert "row1: 31 rows of states for 32 tokens" in only(found(run, changed(docs, only=[1], aux=lambda d: d.aux[:-1])), "EY-STATE-01")
    def broken(d):
        aux = d.aux.clone()
        aux[4, 7] = float("nan")
        return aux
    assert "row2: 1 of 32 rows are not finite, the first is row 4" in only(found(run, changed(docs, only=[2], aux=broken)), "EY-STATE-06")


@pytest.mark.parametrize("mask, words", [
    (lambda d: torch.zeros(32, dtype=torch.bool), "no token of 32"), (lambda d: torch.arange(32) >= 7, "moved by -1"),
    (lambda d: torch.ones(32, dtype=torch.bool), "covers 8 tokens before the answer and misses 0"),
    (lambda d: (torch.arange(32) >= 8) & (torch.arange(32) < 20), "covers 0 tokens before the answer and misses 12")])
def test_a_wrong_loss_mask_is_told(run, mask, words):
    assert words in only(found(run, changed(documents(run), only=[1], loss_mask=mask)), "EY-STATE-08")


def test_shards_whose_manifest_claims_other_boundaries_are_found_out(run, tmp_path):
    (tmp_path / "states-00000.safetensors").symlink_to(run.states / "states-00000.safetensors")
    files.write_json(tmp_path / "manifest.json", {**files.read_json(run.states / "manifest.json"), "boundaries": [2, 4, 6]})
    assert "all chunks are 1 early" in only(list(states.of_states(tmp_path, run.engine, run.traces)), "EY-STATE-02")


# --- the draft ---

def trained(run):
    return drafts.of_export(run.export, run.embed)[0]


def variant(run, config=None, **tensors):
    """The run's export with some keys and tensors changed."""
    c, t = read(run.export)
    return {**c, **(config or {})}, {**t, **tensors}


def test_the_exported_draft_computes_what_the_trainers_does(run):
    assert list(probes.forward(trained(run), run.served())) == []


def test_another_theta_is_seen_in_the_first_step(run):
    config = {"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    assert "first step" in only(list(probes.forward(trained(run), run.served(variant(run, config)))), "EY-FORWARD-01")


def test_a_normed_feedback_is_seen_in_the_second_step_only(run):
    evidence = only(list(probes.forward(trained(run), run.served(variant(run, {"norm_output": True})))), "EY-FORWARD-02")
    assert "another norm" in evidence
    standing = ServedDraft(run.export, run.embed).but(stride=0)
    assert "the position differs" in only(list(probes.forward(trained(run), standing)), "EY-FORWARD-02")


def test_an_fc_that_the_server_skips_is_seen(run, tmp_path):
    one = healthy(tmp_path, boundaries=(3,), steps=1)
    assert "skips fc" in only(list(probes.forward(trained(one), one.served())), "EY-FORWARD-03")


def test_an_fc_of_another_width_is_seen(run):
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2]}}
    fc = read(run.export)[1]["fc.weight"][:, :96]
    served = run.served(variant(run, config, **{"fc.weight": fc.contiguous()}))
    assert "fc.weight reads 96 features" in only(list(probes.forward(trained(run), served)), "EY-FORWARD-03")


def test_coverage_names_what_is_missing_and_the_reading_that_covers(run):
    d2t = load_file(run.export / "model.safetensors")["d2t"]
    assert list(probes.coverage(d2t, run.answers)) == []
    absolute = d2t + torch.arange(len(d2t))
    assert "read as absolute ids d2t covers" in only(list(probes.coverage(absolute, run.answers)), "EY-VOCAB-10")
    few = only(list(probes.coverage(torch.zeros(20, dtype=torch.long), run.answers)), "EY-VOCAB-10")
    assert "read as absolute" not in few and "x)" in few


def test_an_embedding_of_its_own_is_seen(run):
    own = run.embed.clone()
    assert list(probes.embedding({"embed_tokens.weight": own.bfloat16()}, run.embed)) == []
    own[5:8] += 1
    assert "3 of 200 rows" in only(list(probes.embedding({"model.embed_tokens.weight": own}, run.embed)), "EY-TENSOR-18")


def histograms(run, draft):
    for (prompt, response), (aux, _) in zip(run.answers, run.engine.capture([p + r for p, r in run.answers], run.boundaries)):
        right = matches(draft, prompt + response, aux, len(prompt), 5)
        yield verifier.walk(right.tolist(), len(prompt), len(prompt + response) - 1)


def test_a_draft_that_accepts_nothing_is_lifeless(run):
    assert list(probes.acceptance(list(histograms(run, run.served())))) == []
    noise = torch.Generator().manual_seed(0)
    c, t = read(run.export)
    random = run.served((c, {n: w if n == "d2t" else torch.randn(w.shape, generator=noise) * 0.1 for n, w in t.items()}))
    assert "offline tau is 1.0" in only(list(probes.acceptance(list(histograms(run, random)))), "EY-TAU-01")


def test_one_pass_equals_the_trainers_own_replay(run):
    held = shards.load(run.states)
    draft, d2t = drafts.of_export(run.export, run.embed)
    theirs = verifier.replay(draft, held, list(range(len(run.answers))), torch.arange(len(d2t)) + d2t, [5], 64, 8)[5]
    assert list(histograms(run, run.served())) == theirs
