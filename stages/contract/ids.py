"""The layer ids of a draft's config against the rule of the serving engine (stages/contract/rules.py)."""
from stages.contract import rules


def captured(version, target, ids):
    """The boundaries that this server captures (ids None: its defaults), or None where it stops or has no rule."""
    try:
        return rules.boundaries_captured(version, target.architecture, ids, target.num_layers)
    except rules.Refusal:
        return None


def faults(folder, read, target, engine):
    """(code, evidence): would this server capture the boundaries that the draft was trained on, in fc's order?"""
    version, name = engine.version, target.architecture
    row = rules.rule_for(version, name)
    if row is None or row.shift in (rules.NO_SETTER, rules.NOTHING):
        says = row.shift if row else "not in the table of rules"
        first = rules.first_with(name)
        when = f"it captures from {first} on" if first else "no release of the table captures"
        yield ("EY-RULE-02" if row and row.shift == rules.NOTHING else "EY-RULE-01"), f"{name} in SGLang {version}: {says}; {when}"
        return
    if broken := rules.without_residual(version, name):
        yield "EY-RULE-11", f"{name} in SGLang {version} ({broken.where})"
    if not read.use_aux or isinstance(folder.config.get("transformer_layer_config"), dict):
        return
    yield from (_default(read, target, version) if read.ids is None else _explicit(folder, read, target, version, engine.flags))


def _default(read, target, version):
    found = captured(version, target, None)
    if found is None or len(found) != 3:
        yield "EY-RULE-09", f"{target.num_layers} layers: the defaults are the boundaries {found or rules.defaults(target.num_layers)}"


def _explicit(folder, read, target, version, flags):
    ids, n, trained = read.ids, target.num_layers, folder.boundaries
    found = captured(version, target, ids)
    if min(ids) < 0:
        yield "EY-RULE-07", f"ids {ids}"
    elif len(set(ids)) < len(ids):
        yield "EY-RULE-05", f"ids {ids}: {len(set(ids))} states for {len(ids)} chunks of fc"
    elif found is None or len(found) < len(ids):
        yield "EY-RULE-06", f"ids {ids} of a {target.architecture} with {n} layers: " \
            + ("the server stops with an error" if found is None else f"only the boundaries {found} are captured")
    elif ids != sorted(ids) and found != trained:  # a few boundaries of a DeepSeek can only be had by ids out of order
        yield "EY-RULE-04", f"ids {ids}: the server concatenates the boundaries {found}; " \
            + (f"the draft was trained on {trained}" if trained else "no record says in which order it was trained")
    elif trained and found != list(trained):
        # What a trainer usually writes is no proof: such a difference leaves the verdict open.
        level = ("open",) if folder.learned and folder.learned[1] == "assumed" else ()
        says = "drafts of this trainer usually mean" if level else "the draft was trained on"
        yield "EY-RULE-03", _difference(version, target, ids, found, trained, says), *level
    else:
        if not trained:
            outputs = [i + 1 for i in ids]
            says = lambda meant: "right" if meant == found else "wrong"
            yield "EY-RULE-14", f"the server captures the boundaries {found}: {says(outputs)} if the ids {ids} meant outputs of layers " \
                f"in training ({outputs}), {says(ids)} if they meant boundaries", "note" if outputs == found else "open"
        if not flags.get("disable-cuda-graph") and rules.graphs_capture(version, target.architecture, ids, n) != found:
            default = rules.defaults(n)
            yield "EY-RULE-13", f"ids {ids} are the boundaries {found} in prefill and {default} in SGLang {version}'s decode graphs"
        others = _elsewhere(version, target, ids, found)
        if others:
            same = rules.portable_ids(target.architecture, found, n)
            yield "EY-RULE-10", f"ids {ids} are the boundaries {found} in {version}, but {others}; " \
                + (f"the ids {same} are these boundaries in every release" if same else "no ids are these boundaries in every release")
    if "Qwen3VL" in target.architecture and found and found[0] <= 3:
        yield "EY-RULE-12", f"the lowest boundary is {found[0]}"


def _difference(version, target, ids, found, trained, says):
    """One sentence on how the captured boundaries miss the trained ones, and the ids that would not."""
    shifts = {c - t for c, t in zip(found, trained)} if len(found) == len(trained) else set()
    how = ""
    if len(shifts) == 1:
        by = shifts.pop()
        how = f" (all {abs(by)} too {'high' if by > 0 else 'low'}: outputs and inputs of a layer are mixed up)"
    try:
        remedy = f"the ids {rules.ids_to_write(version, target.architecture, list(trained), target.num_layers)} would give them"
    except rules.Refusal as refusal:
        remedy = f"no ids would give them: {refusal}"
    return f"ids {ids} are the boundaries {found} in SGLang {version} for {target.architecture}, {says} " \
        f"{list(trained)}{how}; {remedy}"


def _elsewhere(version, target, ids, found):
    """What these ids are in other releases that capture something: "[2, 30, 58] in 0.5.13 to 0.5.23", or ""."""
    groups = {}
    for release in rules.versions():
        if (other := captured(release, target, ids)) and other != found:
            groups.setdefault(tuple(other), []).append(release)
    return "; ".join(f"{list(b)} in {rs[0]}{f' to {rs[-1]}' if len(rs) > 1 else ''}" for b, rs in groups.items())
