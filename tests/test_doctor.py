"""The doctor names each planted fault by its own code and no other, calls nothing healthy ill, and says in one line what it cannot judge.

One trained draft (tests/healthy.py) is the patient; every test works on a copy. tests/planted.py holds the faults of files, config
and flags; those of data and numbers are planted here.
"""
from stages.lib import cpu  # noqa: F401  before torch
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.contract import check, dialects, probes
from stages.contract.faults import FAULTS, NOTES
from stages.contract.folder import open_folder
from stages.lib import files, shards, vocabulary
from stages.lib.refusal import Refusal
from stages.lib.served_folder import digest
from tests import healthy, planted
from tools import doctor

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def digests_kept_apart(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("EYRIE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def plan(healthy_run):
    return planted.plan_of(healthy_run.export, check.target_of(healthy_run.target), check.Engine())


def examined(draft, target, *words):
    return doctor.examine(doctor.parse([str(draft), "--target", str(target), *map(str, words)]))


def codes(report, level="fault"):
    return [f["code"] for f in report["findings"] if f["level"] == level]


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@dataclass
class Patient:
    """A copy of a healthy run that one may spoil."""
    run: healthy.Healthy
    base: Path

    def __getattr__(self, name):  # draft, target, states, traces
        return self.base / {"draft": "export"}.get(name, name)

    def examined(self, *words):
        return examined(self.draft, self.target, *words)

    def said(self):
        return self.examined("--states", self.states, "--traces", self.traces)

    def write(self, config=None, training=None, **tensors):
        """Change the draft."""
        held = {**load_file(self.draft / "model.safetensors"), **{name.replace("__", "."): w for name, w in tensors.items()}}
        save_file({name: w.contiguous() for name, w in held.items()}, self.draft / "model.safetensors")
        for name, changes in (("config.json", config), ("training.json", training)):
            files.write_json(self.draft / name, {**files.read_json(self.draft / name), **(changes or {})})

    def restate(self, manifest=None, listed=True, **changes):
        """Change tensors of the states' shard, each by a function of the shard's tensors; the manifest follows if `listed`."""
        path = self.states / "states-00000.safetensors"
        held = load_file(path)
        shards.write(path, {**held, **{name: change(held) for name, change in changes.items()}})
        about = {**files.read_json(self.states / "manifest.json"), **(manifest or {})}
        if listed:
            about["shards"][0]["sha256"] = files.sha256(path)
        files.write_json(self.states / "manifest.json", about)

    def captured(self, boundaries):
        return torch.cat([aux for aux, _ in self.run.engine.capture([p + r for p, r in self.run.answers], boundaries)])


@pytest.fixture
def patient(healthy_run, tmp_path):
    return Patient(healthy_run, Path(shutil.copytree(healthy_run.target.parent, tmp_path / "run")))


# --- the healthy draft ---

def test_the_trained_draft_is_healthy_in_every_way(patient):
    for words in (["--states", patient.states, "--traces", patient.traces], ["--traces", patient.traces, "--search"], ["--static"]):
        report = patient.examined(*words)
        assert report["healthy"] and report["findings"] == [], report
        assert "--static" in words or report["tau"] > 3 and report["figures"]["offline"].startswith("tau 3.")
    assert report["trainer"] == "Eyrie" and report["trained_on"] == "on the boundaries [1, 3, 5] (training.json)"


@pytest.mark.parametrize("options", [
    {"layers": 8, "boundaries": (2, 6), "tied": True, "draft_vocab": None}, {"layers": 12, "boundaries": (1, 4, 7, 11)},
    {"boundaries": (1, 2, 3, 4, 5), "draft_vocab": None}], ids=["8 layers, K 2, tied", "12 layers, K 4", "K 5, all words"])
def test_a_healthy_variant_is_healthy(options, tmp_path):
    run = healthy.healthy(tmp_path, **options, steps=90, ttt=2)
    report = examined(run.export, run.target, "--states", run.states, "--traces", run.traces)
    assert report["findings"] == [] and report["tau"] > 2, report


def sharded(p):
    names = sorted(p.tensors)
    p.shards = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    p.index = {name: shard for shard, held in p.shards.items() for name in held}


def shared_embedding(p):
    p.tensors["embed_tokens.weight"] = load_file(p.target.folder / "model.safetensors")["model.embed_tokens.weight"].bfloat16()


def newer_names(p):
    p.rename(r"^midlayer\.", "layers.0.")
    p.serve("0.5.23")


@pytest.mark.parametrize("change", [sharded, shared_embedding, newer_names])
def test_another_form_of_the_same_draft_is_healthy_and_accepts_as_much(plan, healthy_run, change, tmp_path):
    changed = plan.copy()
    change(changed)
    words = [healthy_run.target, "--traces", healthy_run.traces]
    report = examined(changed.write(tmp_path / "draft"), *words, "--sglang", changed.engine.version)
    assert report["findings"] == [] and report["tau"] == examined(healthy_run.export, *words)["tau"]


def test_eagle_3_1_norms_are_healthy(patient):
    """A norm before fc is no algebra: fc is fitted anew, by least squares, to give from normed states what it gave from plain ones."""
    w, aux = load_file(patient.draft / "model.safetensors"), shards.load(patient.run.states)
    aux = torch.cat([aux.document(i, ("aux",))["aux"] for i in range(len(aux.lengths))])
    normed = aux.unflatten(1, (3, -1))
    normed = (normed / normed.square().mean(2, keepdim=True).add(healthy.EPS).sqrt()).flatten(1)
    fc = torch.linalg.lstsq(normed, aux @ w["fc.weight"].float().T).solution.T
    norms = {f"fc_norm__{i}__weight": torch.ones(healthy.SIZE) for i in range(3)}
    patient.write({"fc_norm": True, "norm_output": True}, {"norm_output": True}, fc__weight=fc.bfloat16(), **norms)
    report = patient.said()
    assert report["findings"] == [] and report["tau"] > 1.5, report


# --- faults of files, config and flags ---

def judged(plan, folder, *words):
    """The static report of a Plan, with its own target, version and launch line."""
    target, flags = plan.target.folder, plan.engine.flags
    if target is None:
        target = folder.with_name("target")
        target.mkdir(parents=True)
        files.write_json(target / "config.json", plan.target.config)
        if plan.training:
            plan.training["target_files"] = {"config.json": files.sha256(target / "config.json")}
    line = [f"{name}={value}" if name.isupper() else f"--{name} {shlex.quote(str(value))}"
            for name, value in sorted(flags.items()) if value is not None]
    launch = ["--launch=" + " ".join(line)] if flags else []
    return examined(plan.write(folder), target, "--static", "--sglang", plan.engine.version, *launch, *words)


@pytest.mark.parametrize("code, plant", planted.CASES, ids=[f"{code}-{plant.__name__}" for code, plant in planted.CASES])
def test_a_static_fault_of_the_trained_draft_is_named(plan, code, plant, tmp_path):
    broken = plan.copy()
    plant(broken)
    report = judged(broken, tmp_path / "draft")
    assert codes(report) == [code] and not report["healthy"], report["findings"]


@pytest.mark.parametrize("code", planted.NOTED)
def test_what_is_no_fault_is_a_note(plan, code, tmp_path):
    for number, plant in enumerate(planted.NOTED[code]):
        changed = plan.copy()
        plant(changed)
        report = judged(changed, tmp_path / str(number) / "draft")
        assert (codes(report), codes(report, "note"), report["healthy"]) == ([], [code], True), report["findings"]


# --- faults of data and numbers ---

def nan_in_a_weight(p):
    fc = load_file(p.draft / "model.safetensors")["fc.weight"]
    fc[3, 7] = float("nan")
    p.write(fc__weight=fc)


def embedding_of_another_model(p):
    p.write(embed_tokens__weight=torch.randn(healthy.VOCAB, healthy.SIZE, generator=torch.Generator().manual_seed(4)).bfloat16())


def vocabulary_of_rare_words(p):
    w = load_file(p.draft / "model.safetensors")
    ids, said = vocabulary.target_ids(w["d2t"]), Counter(t for _, r in p.run.answers for t in r)
    rare = torch.tensor(sorted(sorted(range(len(ids)), key=lambda i: said[int(ids[i])])[:60]))
    d2t = ids[rare] - torch.arange(60)
    p.write({"draft_vocab_size": 60}, {"vocabulary": digest(d2t)}, d2t=d2t, lm_head__weight=w["lm_head.weight"][rare])


def fine_tuned_target(p):
    noise, path = torch.Generator().manual_seed(2), p.target / "model.safetensors"
    save_file({name: w + 0.02 * w.std() * torch.randn(w.shape, generator=noise) for name, w in load_file(path).items()}, path,
              {"format": "pt"})


def untrained(p):
    noise = torch.Generator().manual_seed(0)
    p.write(**{name: (torch.randn(w.shape, generator=noise) * 0.1).bfloat16()
               for name, w in load_file(p.draft / "model.safetensors").items() if name != "d2t"})


def token_ids_with_another_start(p):
    shutil.rmtree(p.traces)
    healthy.traces_on_disk(p.traces, [([1, *prompt], response) for prompt, response in p.run.answers])


def a_row_too_few(p):
    rows = [([*prompt], response[:-1]) if i == 10 else (prompt, response) for i, (prompt, response) in enumerate(p.run.answers)]
    shutil.rmtree(p.traces)
    healthy.traces_on_disk(p.traces, rows)


def states_one_early(p):
    p.restate(aux=lambda t: p.captured([0, 2, 4]))


def states_one_late(p):
    p.restate(aux=lambda t: p.captured([2, 4, 6]))


def post_norm_state_as_the_last_chunk(p):
    p.restate(aux=lambda t: torch.cat([*t["aux"].chunk(3, 1)[:2], t["last"]], 1))


def chunks_swapped(p):
    p.restate(aux=lambda t: torch.cat([t["aux"].chunk(3, 1)[c] for c in (1, 0, 2)], 1))


def last_before_the_norm(p):
    p.restate(last=lambda t: p.captured([p.run.layers]))


def last_normed_twice(p):
    with torch.inference_mode():
        p.restate(last=lambda t: p.run.engine.decoder.norm(t["last"]))


def answers_of_another_model(p):
    answers = [(prompt, p.run.answers[(i + 1) % 40][1]) for i, (prompt, _) in enumerate(p.run.answers)]
    for folder in (p.states, p.traces):
        shutil.rmtree(folder)
    healthy.states_on_disk(p.states, p.run.engine, answers, p.run.boundaries)
    healthy.traces_on_disk(p.traces, answers)


def with_rows(tensor, rows, values):
    tensor = tensor.clone()
    tensor[rows] = values
    return tensor


def nan_row(p):
    p.restate(aux=lambda t: with_rows(t["aux"], 20 * 32 + 5, float("nan")))


def rows_shifted(p):
    p.restate(aux=lambda t: t["aux"].roll(1, 0), last=lambda t: t["last"])


def rows_of_one_document_corrupted(p):
    p.restate(aux=lambda t: with_rows(t["aux"], slice(20 * 32 + 10, 20 * 32 + 15), t["aux"][:5]))


def left_padding_of_one_document(p):
    p.restate(aux=lambda t: with_rows(t["aux"], slice(10 * 32, 11 * 32), t["aux"][10 * 32:11 * 32].roll(3, 0)))


def mask_shifted(p):
    p.restate(loss_mask=lambda t: t["loss_mask"].roll(1))


def mask_empty(p):
    p.restate(loss_mask=lambda t: torch.zeros_like(t["loss_mask"]))


def mask_of_everything(p):
    p.restate(loss_mask=lambda t: torch.ones_like(t["loss_mask"]))


def shard_of_another_extraction(p):
    p.restate(listed=False, aux=lambda t: t["aux"] * 2)


def truncated_shard(p):
    os.truncate(p.states / "states-00000.safetensors", 100_000)


def missing_shard(p):
    (p.states / "states-00000.safetensors").unlink()


def states_of_another_target(p):
    p.restate({"target": "f" * 64})


def states_in_another_basis(p):
    rotation = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(0)))[0]
    p.restate(aux=lambda t: (t["aux"].unflatten(1, (3, -1)) @ rotation).flatten(1))


NUMERIC = {
    "EY-TENSOR-11": [nan_in_a_weight], "EY-TENSOR-18": [embedding_of_another_model], "EY-VOCAB-10": [vocabulary_of_rare_words],
    "EY-TAU-01": [untrained],
    "EY-STATE-01": [token_ids_with_another_start, a_row_too_few],
    "EY-STATE-02": [states_one_early, states_one_late, post_norm_state_as_the_last_chunk], "EY-STATE-03": [chunks_swapped],
    "EY-STATE-04": [last_before_the_norm, last_normed_twice], "EY-STATE-05": [answers_of_another_model], "EY-STATE-06": [nan_row],
    "EY-STATE-07": [rows_shifted, rows_of_one_document_corrupted, left_padding_of_one_document],
    "EY-STATE-08": [mask_shifted, mask_empty, mask_of_everything],
    "EY-STATE-09": [shard_of_another_extraction, truncated_shard, missing_shard], "EY-STATE-10": [states_of_another_target],
    "EY-STATE-11": [states_in_another_basis],
}


@pytest.mark.parametrize("code, plant", [(c, p) for c, plants in NUMERIC.items() for p in plants], ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_of_data_or_numbers_is_named(patient, code, plant):
    plant(patient)
    report = patient.said()
    assert codes(report) == [code] and not report["healthy"], report["findings"]


def test_states_without_their_traces_are_judged_as_far_as_that_goes(patient):
    states_one_early(patient)
    report = patient.examined("--states", patient.states)
    assert codes(report) == ["EY-STATE-02"] and "(--traces)" in report["said"][0]


def test_a_changed_target_is_named_and_its_states_are_no_offset(patient):
    fine_tuned_target(patient)
    assert codes(patient.examined("--traces", patient.traces)) == ["EY-TARGET-04"]
    told = codes(patient.said())
    assert told[0] == "EY-TARGET-04" and set(told) <= {"EY-TARGET-04", "EY-STATE-04", "EY-STATE-05", "EY-STATE-11"}


# --- the search ---

def fed_back_after_the_norm(p):
    p.write({"norm_output": True}, {"norm_output": True})


def theta_written_wrongly_in_config_and_record(p):
    p.write({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {"rope_theta": 1e6})


def chunks_concatenated_in_reverse(p):
    p.write(fc__weight=torch.cat(load_file(p.draft / "model.safetensors")["fc.weight"].chunk(3, 1)[::-1], 1))


def states_of_the_token_before(p):
    """Trained on rows that hold the states of the token before, as an extraction with one row too many at the start leaves them."""
    p.restate(aux=lambda t: t["aux"].roll(1, 0))
    d2t = load_file(p.draft / "model.safetensors")["d2t"]
    draft = healthy.train(shards.load(p.states), p.run.engine, d2t, 3, 60, 2)
    p.write(**{name.replace(".", "__"): w.detach().bfloat16() for name, w in draft.named_parameters()})


@pytest.mark.parametrize("plant, words", [
    (fed_back_after_the_norm, "without feedback after the final norm"), (theta_written_wrongly_in_config_and_record, "rope theta 50000"),
    (chunks_concatenated_in_reverse, "chunks in reverse order"),
    (states_of_the_token_before, "states of token t-1 beside the embedding of t+1")], ids=lambda x: getattr(x, "__name__", ""))
def test_the_search_names_the_convention_of_the_training(patient, plant, words):
    plant(patient)
    report = patient.examined("--traces", patient.traces, "--search")
    assert codes(report) == ["EY-TAU-02"] and report["findings"][0]["evidence"].startswith(f"trained with: {words};"), report["findings"]
    assert report["search"][1]["name"] == words and report["search"][1]["lo"] > 0


def test_the_search_finds_offset_0_behind_ids_that_say_otherwise(tmp_path):
    """ids [2, 4], written by somebody who takes them for boundaries: a Llama's server adds one."""
    run = healthy.healthy(tmp_path, layers=8, boundaries=(2, 4), steps=60, ttt=2)
    (run.export / "training.json").unlink()
    config = files.read_json(run.export / "config.json")
    files.write_json(run.export / "config.json", {**config, "eagle_config": {**config["eagle_config"], planted.IDS: [2, 4]}})
    report = examined(run.export, run.target, "--traces", run.traces, "--search")
    assert codes(report) == ["EY-TAU-02"] and "states 1 layer earlier" in report["findings"][0]["evidence"]
    assert "boundaries [2, 4]" in report["findings"][0]["evidence"] and "not known" in report["trained_on"]
    told = examined(run.export, run.target, "--static", "--trained-on", "boundaries")
    assert codes(told) == ["EY-RULE-03"] and "the ids [1, 3] would give them" in told["findings"][0]["evidence"]


def test_another_basis_is_said_as_such_and_never_as_an_offset(patient):
    rotation = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(3)))[0]
    fc = load_file(patient.draft / "model.safetensors")["fc.weight"].float()
    patient.write(fc__weight=(fc.unflatten(1, (3, 48)) @ rotation).flatten(1).bfloat16())
    report = patient.examined("--traces", patient.traces, "--search")
    assert codes(report) == ["EY-TAU-01"] and "its target is in another basis" in report["findings"][0]["evidence"]


# --- what cannot be judged ---

def trace(p, content):
    (p.traces / "traces-00000.jsonl").write_bytes(content)


CANNOT = {
    "truncated weights": lambda p: os.truncate(p.draft / "model.safetensors", 5000),
    "a header that lies": lambda p: (p.draft / "model.safetensors").write_bytes(b"\xff" * 4096),
    "a pipe": lambda p: os.mkfifo(p.draft / "x.safetensors"),
    "an index that leads out": lambda p: files.write_json(p.draft / "model.safetensors.index.json", {
        "weight_map": {"a": "../a.safetensors"}}),
    "pickles alone": lambda p: (p.draft / "model.safetensors").rename(p.draft / "pytorch_model.bin"),
    "no config": lambda p: (p.draft / "config.json").unlink(),
    "no draft": lambda p: shutil.rmtree(p.draft),
    "a record of another kind": lambda p: files.write_json(p.draft / "training.json", {"boundaries": "1, 3, 5"}),
    "no target": lambda p: shutil.rmtree(p.target),
    "a target without sizes": lambda p: files.write_json(p.target / "config.json", {"architectures": ["LlamaForCausalLM"]}),
    "a target's config that is a list": lambda p: (p.target / "config.json").write_text("[]"),
    "a target of text layers": lambda p: files.write_json(p.target / "config.json", {
        **files.read_json(p.target / "config.json"), "num_hidden_layers": "six"}),
    "a truncated target": lambda p: os.truncate(p.target / "model.safetensors", 5000),
    "a target of other tensors": lambda p: save_file({"a": torch.zeros(2)}, p.target / "model.safetensors"),
    "an unknown version": lambda p: ["--sglang", "0.6.0"],
    "no launch file": lambda p: ["--launch", "@/nowhere/launch.sh"],
    "a launch line with an open quote": lambda p: ["--launch", "python -m sglang.launch_server '"],
    "ids outside the vocabulary": lambda p: trace(p, b'{"prompt_ids": [1], "response_ids": [2, 3, 900]}\n'),
    "ids that are text": lambda p: trace(p, b'{"prompt_ids": "one", "response_ids": [2, 3, 9]}\n'),
    "a trace without its prompt": lambda p: trace(p, b'{"response_ids": [2, 3, 9]}\n'),
    "traces that are no text": lambda p: trace(p, b"\xff\xfe\n"),
    "no traces": lambda p: ["--traces", "/nowhere/traces.jsonl"],
    "empty traces": lambda p: trace(p, b""),
    "states without a manifest": lambda p: ["--states", p.draft],
    "a manifest of something else": lambda p: (files.write_json(p.states / "manifest.json", {"shards": [1]}), ["--states", p.states])[1],
    "a tokenizer that is not there": lambda p: ["--no-traces"],
    "an output that is there": lambda p: ["--fix", p.draft],
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_judged_is_one_line_and_exit_code_2(patient, name, capsys):
    more = CANNOT[name](patient)
    more = list(map(str, more)) if isinstance(more, list) else []
    traces = [] if "--no-traces" in more or "--traces" in more else ["--traces", str(patient.traces)]
    words = [str(patient.draft), "--target", str(patient.target), *traces, *(w for w in more if w != "--no-traces")]
    for form in ([], ["--json"]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            doctor.main(words + form)
        out, err = capsys.readouterr()
        assert end.value.code == 2
        if form:
            told = json.loads(out)
            assert told["healthy"] is None and told["cannot_judge"]
        else:
            assert out == "" and err.startswith("cannot judge: ") and err.count("\n") == 1 and len(err) < 1200


JUNK = [None, 0, -1, 3, 2**70, 1.5, True, "", "text", [], [1], ["a"], {}, {"a": 1}, [[1]], "9" * 400]


def mangled(plan, chance):
    """A draft, its target and its launch line with a few random things wrong."""
    broken = plan.copy()
    target = dict(broken.target.config)
    for _ in range(chance.randint(1, 4)):
        kind = chance.choice(["config", "config", "eagle", "training", "target", "drop", "rename", "shape", "dtype", "flag"])
        eagle = broken.config.get("eagle_config")
        held = {"config": broken.config, "eagle": eagle, "training": broken.training, "target": target}.get(kind)
        name = chance.choice(sorted(broken.tensors))
        if isinstance(held, dict):
            key = chance.choice([*held, "rope_scaling", "norm_output", "target_hidden_size", "num_aux_hidden_states", "norm_before_fc"])
            if chance.random() < 0.3:
                held.pop(key, None)
            else:
                held[key] = chance.choice(JUNK)
        elif kind == "drop" and len(broken.tensors) > 1:
            del broken.tensors[name]
        elif kind == "rename":
            broken.tensors[chance.choice(["model.", "x", "layers.0.", "layers.1.", "eagle_module.", ""]) + name] = broken.tensors.pop(name)
        elif kind == "shape":
            shape = chance.choice([(-1,), (1, -1), (-1, 1, 1)])
            broken.tensors[name] = broken.tensors[name].flatten()[:chance.randint(0, 9)].reshape(shape)
        elif kind == "dtype":
            broken.tensors[name] = broken.tensors[name].to(chance.choice([torch.int8, torch.bool, torch.float64, torch.float8_e5m2]))
        elif kind == "flag":
            broken.serve(**{chance.choice(["tp_size", "context_length", "dtype", "json_model_override_args", "quantization",
                                           "speculative_draft_window_size"]): chance.choice(["", "0", "-3", "x", "[]", "9" * 5000])})
    return broken, target


def test_no_mangled_folder_ends_the_doctor(plan, tmp_path):
    chance, told = random.Random(1), Counter()
    for number in range(250):
        broken, target = mangled(plan, chance)
        base = tmp_path / str(number)
        base.mkdir()
        files.write_json(base / "config.json", target)
        broken.write(base / "draft")
        launch = " ".join(f"--{name} {value}" for name, value in broken.engine.flags.items())
        words = ["--static", "--sglang", chance.choice(["0.5.8.post1", "0.5.11", "0.5.15.post1", "0.5.23"]), f"--launch={launch}"]
        before = contents(base / "draft")
        for more in ([], ["--fix", base / "fixed"]):
            try:
                report = examined(base / "draft", base, *words, *more)
                doctor.as_text(report), json.dumps(report, allow_nan=False)
                told.update(set(codes(report)) or ["healthy"])
            except Refusal as refusal:
                assert "\n" not in str(refusal)
                told["refused"] += 1
        assert contents(base / "draft") == before
    assert len(told) >= 25 and told["refused"] < 250, told


# --- the whole command ---

def command(*words):
    return subprocess.run([sys.executable, "-m", "tools.doctor", *map(str, words)], cwd=ROOT, capture_output=True, text=True)


def test_the_command_for_machines_and_for_people(patient):
    done = command(patient.draft, "--target", patient.target, "--states", patient.states, "--traces", patient.traces, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["healthy"] is True and report["findings"] == [] and report["tau"] > 3

    patient.write({"tie_word_embeddings": True})
    done = command(patient.draft, "--target", patient.target, "--static")
    assert done.returncode == 1 and "EY-CONFIG-07" in done.stdout and "1 fault" in done.stdout and done.stderr == ""
    assert FAULTS["EY-CONFIG-07"].cause in done.stdout and "lm_head.weight (150, 48) is in the file" in done.stdout

    done = command(patient.base, "--target", patient.target, "--static")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("cannot judge: ") and done.stderr.count("\n") == 1


# --- the remedy ---

def off_by_one_ids(p):
    p.eagle[planted.IDS] = list(p.training["boundaries"])
    p.set_target(num_hidden_layers=8)


def speculators_form(p):
    p.config["norm_before_residual"] = False
    planted.nested_speculators(p)


def exact_float_map(p):
    p.tensors["d2t"] = p.tensors["d2t"].to(torch.float32)


MENDED = [
    planted.unknown_prefix, planted.absolute_map, planted.absolute_map_without_record, exact_float_map, planted.float_map,
    planted.ids_at_top_level, off_by_one_ids, planted.one_too_high, planted.tied, planted.layers_of_the_target,
    planted.no_draft_vocab_size, planted.null_draft_vocab_size, planted.wrong_draft_vocab_size, planted.no_head_dim, speculators_form,
    planted.no_dtype, planted.no_theta, planted.other_theta, planted.rope_scaling, planted.no_eps, planted.norm_output,
    planted.no_architecture, planted.no_model_type, planted.aux_off, planted.attention_bias, planted.fc_norm_without_flag,
    planted.stale_index, planted.other_vocab_size]


@pytest.mark.parametrize("plant", MENDED, ids=lambda plant: plant.__name__)
def test_a_fault_of_layout_is_mended_in_a_copy(plan, plant, tmp_path):
    broken = plan.copy()
    plant(broken)
    first = judged(broken, tmp_path / "draft")
    before = contents(tmp_path / "draft")
    target = broken.target.folder or tmp_path / "target"
    words = ["--static", "--sglang", broken.engine.version]
    report = examined(tmp_path / "draft", target, *words, "--fix", tmp_path / "fixed")
    assert len(codes(first)) == 1 and codes(report) == codes(first) and not report["healthy"]
    assert report["fix"]["changes"] and report["fix"]["cannot"] == [] and report["fix"]["faults_left"] == [], report["fix"]
    assert report["fix"]["out"] == str(tmp_path / "fixed") and "changed: " in doctor.as_text(report)
    assert contents(tmp_path / "draft") == before
    assert codes(examined(tmp_path / "fixed", target, *words)) == []


def nan_weight(p):
    p.tensors["fc.weight"] = p.tensors["fc.weight"].clone()
    p.tensors["fc.weight"][0, 0] = float("nan")


@pytest.mark.parametrize("plant, said", [
    (planted.norm_before_residual, "norm_before_residual"), (planted.qk_norms, "q_norm"), (planted.qkv_bias, "q_proj.bias"),
    (planted.norm_missing, "norm.weight"), (planted.head_missing, "lm_head.weight"), (planted.norm_before_fc, "norm_before_fc"),
    (planted.fc_norm_without_weights, "fc_norm"), (planted.no_map, "no d2t"), (planted.stale_map, "the trained map"),
    (planted.wrapped_layer, "lacks"), (planted.quantization_config, "quantised")], ids=lambda x: getattr(x, "__name__", ""))
def test_what_only_training_decides_is_said_and_left(plan, plant, said, tmp_path):
    broken = plan.copy()
    plant(broken)
    broken.write(tmp_path / "draft")
    before = contents(tmp_path / "draft")
    report = examined(tmp_path / "draft", plan.target.folder, "--static", "--fix", tmp_path / "fixed")
    assert any(said in sentence for sentence in report["fix"]["cannot"]), report["fix"]
    assert report["fix"]["changes"] == [] and report["fix"]["out"] is None and not (tmp_path / "fixed").exists()
    assert contents(tmp_path / "draft") == before and "cannot: " in doctor.as_text(report)


def test_a_mended_copy_says_that_its_weights_are_broken(plan, tmp_path):
    broken = plan.copy()
    nan_weight(broken)
    planted.unknown_prefix(broken)
    broken.write(tmp_path / "draft")
    report = examined(tmp_path / "draft", plan.target.folder, "--static", "--fix", tmp_path / "fixed")
    assert any("fc.weight holds NaN" in sentence for sentence in report["fix"]["cannot"])
    assert open_folder(tmp_path / "fixed").read("fc.weight").isnan().sum() == 1


def test_a_healthy_folder_is_not_written_again(plan, healthy_run, tmp_path):
    report = examined(healthy_run.export, healthy_run.target, "--static", "--fix", tmp_path / "fixed")
    assert report["fix"] == {"out": None, "changes": [], "cannot": [], "faults_left": []} and report["healthy"]
    assert not (tmp_path / "fixed").exists() and "nothing to fix" in doctor.as_text(report)
    assert dialects.fixed(open_folder(healthy_run.export), plan.target, plan.engine)[2:] == ([], [])


# --- is everything planted? ---

# The rows of the contract's section 8, by the codes that name them.
SECTION_8 = {
    1: "TENSOR-01 TENSOR-02 TENSOR-09", 2: "TENSOR-03 CONFIG-07 CONFIG-09",
    3: "VOCAB-01 VOCAB-02 VOCAB-03 VOCAB-04 VOCAB-05 VOCAB-06 VOCAB-09", 4: "RULE-03 RULE-04 RULE-05 RULE-06 RULE-07",
    5: "CONFIG-03 CONFIG-04 RULE-08 CONFIG-26", 6: "FLAG-01 CONFIG-05 CONFIG-30", 7: "CONFIG-06",
    8: "CONFIG-21 CONFIG-22 CONFIG-23 TENSOR-08 TENSOR-12 FORWARD-02", 9: "TENSOR-05 TENSOR-06", 10: "TAU-02 FORWARD-01",
    11: "CONFIG-14 CONFIG-15 CONFIG-16", 12: "CONFIG-17 CONFIG-18 CONFIG-20", 13: "FLAG-03 CONFIG-29 STATE-11", 14: "FLAG-09",
    15: "CONFIG-11", 16: "TENSOR-15 CONFIG-12", 17: "VOCAB-10 VOCAB-11", 18: "TARGET-01 TARGET-02", 19: "STATE-05",
    20: "STATE-01 STATE-06 STATE-07", 21: "STATE-02 STATE-04", 22: "CONFIG-28 RULE-12", 23: "FLAG-06", 24: "FLAG-04",
    28: "FLAG-07 FLAG-08", 29: "TENSOR-11", 30: "FILE-01 FILE-02 FILE-03 FILE-04 VOCAB-02",
}
# In no file: bytecode of another version, a class skipped at import, what a warm prefix cache does. They need a running server.
RUNTIME = {25, 26, 27}
# The cases of the peers' pains (the twenty of section 4 and the bonus ones), where a draft or its data can hold them.
PEERS = {1: "STATE-08", 2: "STATE-08", 3: "TARGET-02", 6: "STATE-01", 7: "STATE-07", 8: "STATE-02 RULE-03", 9: "STATE-04",
         10: "STATE-06 STATE-09", 12: "VOCAB-07 VOCAB-08", 13: "VOCAB-10", 14: "TENSOR-02 TENSOR-04 TENSOR-09 CONFIG-22",
         16: "FORWARD-01 FORWARD-02", 19: "CONFIG-19 CONFIG-16", 20: "FLAG-01 FLAG-02 TAU-01", 24: "TARGET-04"}
ELSEWHERE = {"EY-TAU-02", "EY-TARGET-04",  # above, in tests of their own
             "EY-RULE-14",  # tests/test_contract.py: an open question, no fault
             "EY-FORWARD-01", "EY-FORWARD-02", "EY-FORWARD-03",  # tests/test_probes.py
             "EY-TENSOR-13", "EY-TENSOR-14",  # tests/test_contract.py, on an MLA draft
             "EY-PLAN-01", "EY-PLAN-02"}  # tests/pipeline: of a plan, not of a draft


def test_every_row_of_the_contract_is_planted_or_needs_a_running_server():
    named = {*planted.PLANTS, *planted.NOTED, *NUMERIC, *ELSEWHERE}
    assert SECTION_8.keys() | RUNTIME == set(range(1, 31)) and not SECTION_8.keys() & RUNTIME and len(PEERS) >= 15
    asked = {f"EY-{code}" for rows in (SECTION_8, PEERS) for text in rows.values() for code in text.split()}
    assert asked <= named and named == set(FAULTS) and set(planted.NOTED) == set(NOTES)


# --- what the doctor does not know ---

def test_a_note_on_the_vocabulary_neither_ends_nor_heals_anything(plan, healthy_run, tmp_path, monkeypatch):
    """A draft that accepts nothing stays a fault beside a note."""
    monkeypatch.setattr(probes, "coverage", lambda d2t, answers: [("EY-VOCAB-10", "covers 90 %", "note")])
    report = examined(healthy_run.export, healthy_run.target, "--traces", healthy_run.traces)
    assert report["healthy"] and [f["level"] for f in report["findings"] if f["code"] == "EY-VOCAB-10"] == ["note"]
    dead = plan.copy()
    noise = torch.Generator().manual_seed(0)
    dead.tensors = {n: w if n == "d2t" else torch.randn(w.shape, generator=noise).to(w.dtype) for n, w in dead.tensors.items()}
    dead.write(tmp_path / "dead")
    assert codes(examined(tmp_path / "dead", healthy_run.target, "--traces", healthy_run.traces)) == ["EY-TAU-01"]


def test_what_was_asked_for_and_cannot_be_done_is_no_health(plan, healthy_run, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((healthy_run.target / "config.json").read_text())
    for words in (["--search"], ["--states", str(healthy_run.states)]):
        with pytest.raises(Refusal, match="needs the target's weights"):
            examined(healthy_run.export, bare, *words)
    with pytest.raises(Refusal, match="does not exist"):
        examined(healthy_run.export, healthy_run.target, "--traces", tmp_path / "nope")


def test_an_option_against_the_record_is_refused(healthy_run):
    with pytest.raises(Refusal, match="records the boundaries"):
        examined(healthy_run.export, healthy_run.target, "--static", "--trained-on", "boundaries")


def test_an_open_question_is_neither_healthy_nor_a_fault(plan, healthy_run, tmp_path):
    changed = plan.copy()
    changed.training = None
    changed.write(tmp_path / "draft")
    target = tmp_path / "deepseek"
    target.mkdir()
    config = json.loads((healthy_run.target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "architectures": ["DeepseekV3ForCausalLM"]}))
    ids = changed.eagle[planted.IDS]
    report = examined(tmp_path / "draft", target, "--static")
    expected = {True: True, False: None}[ids[0] == 1]
    assert report["healthy"] is expected and "EY-RULE-14" in [f["code"] for f in report["findings"]]
    assert examined(tmp_path / "draft", target, "--static", "--fix", tmp_path / "fixed")["fix"]["out"] is None or \
        "boundaries" not in json.loads((tmp_path / "fixed/training.json").read_text())
