"""One call for every check that needs no forward pass: is this draft folder what this server will run on this target?

preflight, export, evaluate and tools/doctor all call `check`; there is no other copy of these rules.
"""
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from stages.contract import config, identity, ids, launch, rules, tensors, trainers, vocabulary
from stages.contract.faults import FAULTS, NOTES
from stages.lib.headers import read_object
from stages.lib.refusal import Refusal

PINNED = "0.5.15.post1"
LEVELS = ("fault", "open", "note")


@dataclass(frozen=True)
class Finding:
    code: str
    evidence: str
    level: str = "fault"  # "open": nobody can tell without knowing more; "note": worth knowing, no reason to refuse

    @property
    def cause(self):
        fault = FAULTS[self.code]
        return fault.cause if self.level == "fault" else fault.unsure or fault.cause

    @property
    def remedy(self):
        return FAULTS[self.code].remedy

    def as_dict(self):
        return {"code": self.code, "level": self.level, "cause": self.cause, "evidence": self.evidence, "remedy": self.remedy}

    def __str__(self):
        return f"{self.code} {self.cause}: {self.evidence}; {self.remedy}"


@dataclass(frozen=True)
class Target:
    """config: the target's config.json, a nested text_config laid over it. folder: where its files are, or None."""
    config: dict
    folder: Path | None = None

    @property
    def architecture(self):
        return (self.config.get("architectures") or [None])[0]

    @property
    def num_layers(self):
        return self.config["num_hidden_layers"]

    @property
    def hidden_size(self):
        return self.config["hidden_size"]

    @property
    def vocab_size(self):
        return self.config["vocab_size"]

    @property
    def end_tokens(self):
        found = self.config.get("eos_token_id")
        return [t for t in (found if isinstance(found, list) else [found]) if isinstance(t, int)]


def target_of(folder):
    """The Target in a model folder. Refusal when it has no usable config.json."""
    folder = Path(folder)
    try:
        found = read_object(folder / "config.json")
    except OSError as error:
        raise Refusal(f"{folder / 'config.json'} cannot be read ({error}); expected a target's folder") from None
    nested = found.get("text_config")
    if isinstance(nested, dict):
        found = {**found, **nested, "architectures": found.get("architectures")}
    wanted = ("architectures", "hidden_size", "num_hidden_layers", "vocab_size")
    if lacking := [key for key in wanted if not found.get(key)]:
        raise Refusal(f"{folder / 'config.json'} lacks {', '.join(lacking)}; expected a language model's config")
    if wrong := config.wrong_kinds({key: found.get(key) for key in config.OF_TARGET}):
        raise Refusal(f"{folder / 'config.json'} is no language model's config: {'; '.join(wrong)}")
    return Target(found, folder)


@dataclass(frozen=True)
class Engine:
    """version: of SGLang. flags: launch flags without dashes ({"tp-size": "2"}); {} when no launch line is known."""
    version: str = PINNED
    flags: dict = field(default_factory=dict)

    def __post_init__(self):
        first, *_, last = rules.versions()
        try:
            known = Version(first) <= Version(Version(self.version).public) <= Version(last)
        except InvalidVersion:
            known = False
        if not known:
            raise Refusal(f"no contract for SGLang {self.version}; the tables hold {first} to {last}, the pinned version is {PINNED}")


def check(folder, target, engine):
    """Findings, in the order of the table of faults; [] when nothing is wrong.

    folder: contract.folder.Folder. Headers, config and the vocabulary map are read; no weight is.
    """
    if trainers.raw(folder):
        return sorted_findings([("EY-FILE-05", "tensors are named eagle_module.* beside the target's own")])  # any more is of the target
    found = list(_files(folder))
    if nested(folder):
        found += config.faults(folder, None, target, engine)
        folder = flattened(folder, target, engine)
    if wrong := config.wrong_kinds(folder.config):
        found += [("EY-CONFIG-31", "; ".join(wrong))]
    else:
        read = config.read(folder.config, engine.version, engine.flags.get("dtype", "auto"))
        parts = [config, ids, launch, identity]
        if nested(folder):
            parts.remove(config)  # all keys are missing, and that has been said
        elif not folder.index_misses:  # else tensors are missing, and that has been said
            parts += [tensors, vocabulary]
        for part in parts:
            found += part.faults(folder, read, target, engine)
    if any(code in ("EY-CONFIG-03", "EY-CONFIG-04") and not level for code, _, *level in found):
        found = [row for row in found if row[0] != "EY-RULE-09"]  # ids were trained and are not read: the defaults are no matter
    return sorted_findings(found)


def nested(folder):
    return isinstance(folder.config.get("transformer_layer_config"), dict)


def flattened(folder, target, engine):
    """The folder with the config that `--fix` would write, so that a nested one hides no other fault; its tensors as they are."""
    from stages.contract import dialects  # here: it imports torch, for which the other checks need not wait
    known = folder.boundaries
    return replace(folder, config=dialects.fixed(folder, target, engine, known if known and known == sorted(set(known)) else None)[0])


def values(folder, engine):
    """(code, evidence) of weights that are not finite: reads every weight once, seconds for a draft of 1.2 B."""
    return tensors.values(folder, config.read(folder.config, engine.version), engine)


def sorted_findings(found):
    """Findings of (code, evidence[, level]) tuples, faults first, each in the order of the table."""
    return ordered(Finding(code, evidence, *(level or (["note"] if code in NOTES else []))) for code, evidence, *level in found)


def ordered(findings):
    place = list(FAULTS).index
    return sorted(findings, key=lambda f: (LEVELS.index(f.level), place(f.code)))


def wrong(findings):
    """Is there a fault among them? Notes and open questions are none."""
    return any(f.level == "fault" for f in findings)


def refuse(findings, what):
    """A Refusal that lists every fault among `findings`; notes alone refuse nothing."""
    if faults := [f for f in findings if f.level == "fault"]:
        raise Refusal(f"{what} breaks the serving contract:\n  " + "\n  ".join(map(str, faults)))


def _files(folder):
    if folder.pickles:
        yield "EY-FILE-01", ", ".join(folder.pickles[:4])
    if folder.repeated:
        yield "EY-FILE-04", "; ".join(f"{name} in {', '.join(names)}" for name, names in list(folder.repeated.items())[:3])
    if folder.index_misses:
        yield "EY-FILE-03", ", ".join(folder.index_misses[:4])
    elif folder.left_out:
        outside = sorted({header.file for header in folder.left_out.values()})
        yield "EY-FILE-02", f"{', '.join(outside[:4])} with {len(folder.left_out)} tensors"
