"""A trained draft names the convention of its training, whatever the folder says."""
import pytest
import torch
import transformers

from stages.contract import search
from stages.contract.forward import read
from stages.engines.transformers_engine import Engine
from tests.healthy import answers_of, healthy, tiny_target

ANSWERS = 10


@pytest.fixture
def run(healthy_run):
    return healthy_run


def rows_of(run, served=None, boundaries=None, engine=None, answers=None):
    return search.search(served or run.served(), engine or run.engine, boundaries or run.boundaries, answers or run.answers[:ANSWERS])


def trained_with(rows):
    (code, evidence), = search.verdict(rows)
    assert code == "EY-TAU-02", evidence
    return evidence.removeprefix("trained with: ").split(";")[0]


def changed(run, config=None, **tensors):
    c, t = read(run.export)
    return run.served(({**c, **(config or {})}, {**t, **tensors}))


def test_a_draft_served_as_it_was_trained_has_no_verdict(run):
    rows = rows_of(run)
    assert rows[0].tau > 3 and list(search.verdict(rows)) == []
    assert all(row.hi < 0 for row in rows[1:])


@pytest.mark.parametrize("offset, name", [(1, "states 1 layer earlier"), (-1, "states 1 layer later")])
def test_an_offset_is_found(run, offset, name):
    rows = rows_of(run, boundaries=[b + offset for b in run.boundaries])
    assert trained_with(rows) == name and rows[1].lo > 1 and "boundaries [1, 3, 5]" in rows[1].change


def test_a_draft_trained_on_the_last_layers_output_is_not_misread_at_the_stacks_end(run):
    assert [row.name for row in rows_of(run, boundaries=[2, 4, 6])][1] == "states 1 layer earlier"


def test_reversed_chunks_are_found(run):
    fc = read(run.export)[1]["fc.weight"].float()
    turned = changed(run, **{"fc.weight": torch.cat(fc.chunk(3, 1)[::-1], 1)})
    assert trained_with(rows_of(run, turned)) == "chunks in reverse order"


def test_another_theta_is_found(run):
    rope = {"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    assert trained_with(rows_of(run, changed(run, rope))) == "rope theta 50000"


def test_absolute_ids_are_found(run):
    d2t = read(run.export)[1]["d2t"]
    assert trained_with(rows_of(run, changed(run, d2t=d2t + torch.arange(len(d2t))))) == "d2t holds target ids"


def test_a_norm_that_only_the_server_applies_is_found(run):
    assert trained_with(rows_of(run, changed(run, {"norm_output": True}))) == "without feedback after the final norm"


def test_an_fc_that_the_server_skips_is_found(tmp_path):
    one = healthy(tmp_path, boundaries=(3,))
    assert trained_with(rows_of(one)) == "fc applied to one state"


@pytest.mark.parametrize("kind", ["another target", "rotated", "untrained"])
def test_what_no_convention_saves_is_never_called_an_offset(run, tmp_path, kind):
    noise = torch.Generator().manual_seed(3)
    engine, answers, served = run.engine, run.answers[:ANSWERS], run.served()
    if kind == "another target":
        engine = Engine(tiny_target(tmp_path, seed=5), transformers.__version__, "float32", 1)
        answers = answers_of(engine)[:ANSWERS]
    elif kind == "rotated":  # the same words, hidden states in another basis, as after a merge of a rotation into the weights
        rotation = torch.linalg.qr(torch.randn(48, 48, generator=noise))[0]
        fc = read(run.export)[1]["fc.weight"].float()
        served = changed(run, **{"fc.weight": (fc.unflatten(1, (3, 48)) @ rotation).flatten(1)})
    else:
        c, t = read(run.export)
        served = run.served((c, {n: w if n == "d2t" else torch.randn(w.shape, generator=noise) * 0.1 for n, w in t.items()}))
    (code, evidence), = search.verdict(rows_of(run, served, engine=engine, answers=answers))
    assert code == "EY-TAU-01" and "another basis" in evidence and "states 1 layer" not in evidence.split(":")[0]


@pytest.mark.parametrize("options", [{"tied": True, "draft_vocab": None}, {"boundaries": (1, 2, 3, 4, 5)},
                                     {"layers": 8, "boundaries": (2, 4)}], ids=str)
def test_an_offset_is_found_for_other_shapes_too(tmp_path, options):
    run = healthy(tmp_path, **options)
    rows = rows_of(run)
    assert rows[0].tau > 2.5 and list(search.verdict(rows)) == []
    assert trained_with(rows_of(run, boundaries=[b + 1 for b in run.boundaries])) == "states 1 layer earlier"
