"""Engine rules: how a given SGLang turns the layer ids of a draft's config into the boundaries that it captures.

A boundary b is the residual stream that enters 0-based layer b; SGLang captures in the layer loop, in ascending order
whatever the order of the ids, each boundary once. The setter `set_eagle3_layers_to_capture` of the target's class decides
what an id means, and it differs by class and version. The table holds SGLang 0.5.8 to 0.5.23, all 21 releases.

How it was established. "executed": the setter was cut out of each of the 21 wheels and run on stand-ins for a grid of ids;
`make test-contract` runs 0.5.15.post1's on real models, VERSIONS=all the others. "read": the layer loop behind it, at the
line given. A line without a version is of 0.5.15.post1.
"""
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from stages.lib.refusal import Refusal

RELEASES = ("0.5.8", "0.5.8.post1", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1",
            "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")

PLUS_ONE = "+1"
PLUS_ONE_IF_FIRST_IS_1 = "+1 only if ids[0] == 1, else as they are"
AS_THEY_ARE_IF_MAX_IS_N = "as they are if max(ids) is the number of layers, else +1"
NO_SETTER = "no setter: AttributeError at the server's start"
NOTHING = "a setter whose list the layer loop never reads: nothing captured, an unpacking error at the first request"

BOTH = "executed: setter; read: layer loop"


@dataclass(frozen=True)
class Row:
    """Holds for its classes from release `since` until the next row of the same class."""
    classes: tuple[str, ...]
    since: str
    shift: str
    where: str = ""
    how: str = BOTH
    embedding_since: str | None = "0.5.8"  # boundary 0 is captured as the embedding from here on; before: a TypeError (None + tensor)
    last: bool = False       # boundary n, the last layer's output, is captured
    flags: bool = False      # the setter marks layer objects by index: boundary n is an IndexError, boundary -1 means the last layer
    indexes: bool = False    # an IndexError too, but the loop reads the list: boundary -1 is out of reach
    default_shift: int = 0   # what is added to the defaults


def _row(classes, since, shift, where="", **more):
    return Row(tuple(classes.split()), since, shift, where, **more)


DEEPSEEK = "DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM MistralLarge3ForCausalLM"
BAILING = "BailingMoEForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM"
QWEN3_5 = "Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration"

RULES = [
    # dense and plain MoE classes
    _row("LlamaForCausalLM MistralForCausalLM Ministral3ForCausalLM Phi3ForCausalLM InternLM3ForCausalLM IQuestCoderForCausalLM",
         "0.5.8", PLUS_ONE, "llama.py:811-823, 407-408; 0.5.22 llama.py:485", embedding_since="0.5.22"),
    _row("ApertusForCausalLM", "0.5.8", PLUS_ONE, "apertus.py:670-682, 355; 0.5.22 apertus.py:372", embedding_since="0.5.22"),
    _row("Llama4ForCausalLM", "0.5.8", PLUS_ONE, "llama.py:811-823, llama4.py:541; 0.5.21 llama4.py:534", embedding_since="0.5.21"),
    _row("Llama4ForConditionalGeneration", "0.5.8", PLUS_ONE, "delegates, silently if it cannot: mllama4.py:985-987, llama4.py:541",
         embedding_since="0.5.21"),
    _row("Qwen2ForCausalLM", "0.5.8", PLUS_ONE, "qwen2.py:655-668, 373-376"),
    _row("Qwen3ForCausalLM", "0.5.8", PLUS_ONE, "qwen3.py:689-702, qwen2.py:373-376"),
    _row("Qwen2MoeForCausalLM Qwen3MoeForCausalLM", "0.5.8", PLUS_ONE, "qwen2_moe.py:1183, 871-874, 932; qwen3_moe.py:1073", flags=True),
    _row("MellumForCausalLM", "0.5.16", PLUS_ONE, "inherits Qwen3-MoE's: 0.5.18 qwen3_moe.py:1082", flags=True),
    _row("Qwen3NextForCausalLM", "0.5.8", NO_SETTER, "0.5.8 qwen3_next.py"),
    _row("Qwen3NextForCausalLM", "0.5.9", PLUS_ONE, "qwen3_next.py:1263-1278, 966", flags=True),
    _row("Glm4MoeForCausalLM", "0.5.8", PLUS_ONE, "glm4_moe.py:1465-1477, 1124; 0.5.21 glm4_moe.py:1108", embedding_since="0.5.21"),
    _row("LongcatFlashForCausalLM", "0.5.8", PLUS_ONE, "longcat_flash.py:1054-1061, 563; 0.5.21 :631", embedding_since="0.5.21"),
    _row("MiniMaxM2ForCausalLM", "0.5.8", PLUS_ONE, "minimax_m2.py:1256-1268, 1187; 0.5.11 :1164", embedding_since="0.5.11"),
    _row("MiniMaxM3SparseForCausalLM", "0.5.16", NOTHING, "0.5.16 minimax_m3.py:1491-1504; 0.5.17 :1401"),
    _row("MiniMaxM3SparseForCausalLM", "0.5.18", PLUS_ONE, "0.5.18 minimax_m3.py:1616-1635"),
    _row("MiniMaxM3SparseForCausalLM", "0.5.23", PLUS_ONE, "0.5.23 minimax_m3.py:2056-2075, 1962", last=True),
    _row("MiniMaxM3SparseForConditionalGeneration", "0.5.16", NO_SETTER, "0.5.16 minimax_m3_vl.py"),
    _row("MiniMaxM3SparseForConditionalGeneration", "0.5.18", PLUS_ONE, "its defaults get +1 too: 0.5.18 minimax_m3_vl.py:207-231",
         default_shift=1),
    _row("MiniMaxM3SparseForConditionalGeneration", "0.5.23", PLUS_ONE, "0.5.23 minimax_m3_vl.py:246-270, minimax_m3.py:1962",
         default_shift=1, last=True),
    _row(BAILING, "0.5.8", NO_SETTER, "0.5.8 bailing_moe.py"),
    _row(BAILING, "0.5.9", PLUS_ONE, "bailing_moe.py:1034-1045, 770-775"),
    _row("SarvamMoEForCausalLM", "0.5.10", PLUS_ONE, "inherits bailing_moe.py:1034-1045"),
    _row("ExaoneMoEForCausalLM", "0.5.9", PLUS_ONE, "exaone_moe.py:868-881, 604; 0.5.22 :608", embedding_since="0.5.22"),
    _row("ExaoneMoeForCausalLM", "0.5.22", PLUS_ONE, "0.5.22 exaone_moe.py:867, 608"),
    # gpt-oss: with n among the ids they are taken as boundaries; capture moved behind the layer, so n is reached (sglang#32334)
    _row("GptOssForCausalLM", "0.5.8", PLUS_ONE, "gpt_oss.py:1287-1299, 695-696", embedding_since=None),
    _row("GptOssForCausalLM", "0.5.17", AS_THEY_ARE_IF_MAX_IS_N, "0.5.17 gpt_oss.py:1328-1345, 726-737", last=True),
    # MLA classes: the condition on the first id came with 0.5.13 (sglang#25454)
    _row(f"{DEEPSEEK} Glm4MoeLiteForCausalLM", "0.5.8", PLUS_ONE, "0.5.12.post1 deepseek_v2.py:2529; GLM-lite inherits it",
         embedding_since=None),
    _row(DEEPSEEK, "0.5.13", PLUS_ONE_IF_FIRST_IS_1, "deepseek_v2.py:2905-2920, 2602; 0.5.13 :2446; 0.5.14 :2502",
         embedding_since="0.5.14"),
    _row("GlmMoeDsaForCausalLM", "0.5.9", PLUS_ONE, "inherits 0.5.12.post1 deepseek_v2.py:2529", embedding_since=None),
    _row("GlmMoeDsaForCausalLM", "0.5.13", PLUS_ONE_IF_FIRST_IS_1, "inherits deepseek_v2.py:2905-2920", embedding_since="0.5.14"),
    _row("KimiK25ForConditionalGeneration", "0.5.9", NO_SETTER, "0.5.9 kimi_k25.py"),
    _row("KimiK25ForConditionalGeneration", "0.5.10", PLUS_ONE, "delegates: 0.5.12.post1 kimi_k25.py:799, deepseek_v2.py:2529",
         embedding_since=None),
    _row("KimiK25ForConditionalGeneration", "0.5.13", PLUS_ONE_IF_FIRST_IS_1, "delegates: kimi_k25.py:825-836, deepseek_v2.py:2905-2920",
         embedding_since="0.5.14"),
    _row("Glm4MoeLiteForCausalLM", "0.5.13", PLUS_ONE_IF_FIRST_IS_1, "glm4_moe_lite.py:1026-1041, 852; 0.5.21 :814",
         embedding_since="0.5.21"),
    # Gemma: the last layer's output is captured behind the loop
    _row("Gemma3ForCausalLM Gemma3ForConditionalGeneration", "0.5.8", NO_SETTER, "0.5.11 gemma3_causal.py, gemma3_mm.py"),
    _row("Gemma3ForCausalLM", "0.5.12", PLUS_ONE, "gemma3_causal.py:903-912, 625, 656-659", last=True),
    _row("Gemma3ForConditionalGeneration", "0.5.12", PLUS_ONE, "delegates, silently if it cannot: gemma3_mm.py:498-500", last=True),
    _row("Gemma4ForCausalLM Gemma4ForConditionalGeneration", "0.5.11", NO_SETTER, "0.5.11 gemma4_causal.py, gemma4_mm.py"),
    _row("Gemma4ForCausalLM", "0.5.12", PLUS_ONE, "gemma4_causal.py:1409-1418, 980, 1015-1018", last=True),
    _row("Gemma4ForConditionalGeneration", "0.5.12", PLUS_ONE, "gemma4_mm.py:1101-1114, gemma4_causal.py:980, 1015-1018", last=True),
    _row("Gemma4UnifiedForConditionalGeneration", "0.5.13", PLUS_ONE, "inherits gemma4_mm.py:1101-1114", last=True),
    # Qwen's vision classes
    _row("Qwen2_5_VLForConditionalGeneration", "0.5.8", PLUS_ONE, "qwen2_5_vl.py:882, qwen2.py:373-376"),
    _row("Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration", "0.5.8", NO_SETTER, "0.5.10.post1 qwen3_vl.py"),
    _row("Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration", "0.5.11", PLUS_ONE,
         "qwen3_vl.py:1538, 1162; qwen3_vl_moe.py:102"),
    _row("Qwen3VLMoeForConditionalGeneration", "0.5.22", PLUS_ONE, "through Qwen3-MoE's setter: 0.5.22 qwen3_vl.py:1778, qwen2_moe.py",
         indexes=True),
    _row(QWEN3_5, "0.5.9", NO_SETTER, "0.5.9 qwen3_5.py"),
    _row(QWEN3_5, "0.5.11", NOTHING, "inherits qwen3_vl.py:1538; qwen3_5.py:1307"),
    _row(QWEN3_5, "0.5.22", PLUS_ONE, "0.5.22 qwen3_vl.py:1778, qwen3_5.py:1837-1840",
         flags=True),
    _row("Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM", "0.5.17", NO_SETTER, "0.5.21 qwen3_5_text.py"),
    _row("Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM", "0.5.22", PLUS_ONE, "0.5.22 qwen3_5_text.py:130, qwen3_5.py:1837-1840", flags=True),
    # classes that one may want to serve and that have no setter in any of these releases
    _row("ArceeForCausalLM Glm4ForCausalLM GraniteForCausalLM GraniteMoeForCausalLM GemmaForCausalLM Gemma2ForCausalLM MixtralForCausalLM "
         "Olmo2ForCausalLM OlmoeForCausalLM PhiForCausalLM PhiMoEForCausalLM StableLmForCausalLM Starcoder2ForCausalLM GPT2LMHeadModel "
         "CohereForCausalLM Ernie4_5_ForCausalLM HunYuanDenseV1ForCausalLM KimiVLForConditionalGeneration Mistral3ForConditionalGeneration "
         "Qwen2VLForConditionalGeneration Glm4vForConditionalGeneration Qwen3OmniMoeForConditionalGeneration", "0.5.8", NO_SETTER,
         "no set_eagle3_layers_to_capture in models/ of any release", how="executed: looked up in every release"),
]

# Before this release the decode graphs are captured after a call of the setter without ids (0.5.10.post1
# model_executor/cuda_graph_runner.py:648, ids only set at model_runner.py:668): ids other than the defaults reach prefill alone.
GRAPHS_READ_IDS_SINCE = "0.5.11"


@dataclass(frozen=True)
class Corrupt:
    """Captured values that are not the residual stream, in releases from `since` on and before `before`."""
    classes: tuple[str, ...]
    since: str
    before: str | None
    where: str
    fusion_is_default: bool = False  # all-reduce fusion is switched on by itself (SM90 and SM100, one node, no DP attention)


# With tp > 1 and FlashInfer's all-reduce fusion the tensor is one rank's summand. All read, none run.
PARTIAL_SUMS = [
    Corrupt(("GptOssForCausalLM",), "0.5.8", "0.5.21", "gpt_oss.py:696", True),
    Corrupt(("Glm4MoeForCausalLM",), "0.5.8", "0.5.21", "glm4_moe.py:1125", True),
    Corrupt(("Glm4MoeLiteForCausalLM",), "0.5.8", "0.5.21", "glm4_moe_lite.py:853; before 0.5.13 DeepSeek's", True),
    Corrupt(("DeepseekV2ForCausalLM",), "0.5.8", "0.5.14", "0.5.13 deepseek_v2.py:2446-2453"),
    Corrupt(("DeepseekV3ForCausalLM",), "0.5.8", "0.5.14", "0.5.13 deepseek_v2.py:2446-2453", True),
    Corrupt(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), "0.5.8", "0.5.11", "0.5.10 deepseek_v2.py"),
    Corrupt(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), "0.5.11", "0.5.14", "0.5.13 deepseek_v2.py:2446-2453", True),
    Corrupt(("MistralLarge3ForCausalLM",), "0.5.8", "0.5.13", "0.5.12 deepseek_v2.py"),
    Corrupt(("MistralLarge3ForCausalLM",), "0.5.13", "0.5.14", "0.5.13 deepseek_v2.py:2446-2453", True),
    Corrupt(("KimiK25ForConditionalGeneration",), "0.5.10", "0.5.14", "0.5.13 deepseek_v2.py:2446-2453", True),
    Corrupt(tuple(BAILING.split()), "0.5.9", "0.5.21", "bailing_moe.py:771"),
    Corrupt(("SarvamMoEForCausalLM",), "0.5.10", "0.5.21", "bailing_moe.py:771"),
    Corrupt(("ExaoneMoEForCausalLM",), "0.5.9", "0.5.16", "exaone_moe.py:605"),
]

# The layer's output without its residual, on any number of ranks (sglang#39286): accept length about 1.
WITHOUT_RESIDUAL = [
    Corrupt(("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), "0.5.17", None, "0.5.17 gemma3_causal.py:642-675"),
]


class Stops(Refusal):
    """The server ends with an error for these ids, at its start or at the first request."""


def versions():
    """The releases that the table was checked against, oldest first."""
    return RELEASES


def rule_for(sglang, target_class):
    """The Row in force, or None where the class or the version is unknown."""
    version = _version(sglang)
    if version is None:
        return None
    rows = [row for row in RULES if target_class in row.classes and Version(row.since) <= version]
    return max(rows, key=lambda row: Version(row.since), default=None)


def defaults(num_layers):
    """The boundaries that a server takes for a config without ids (a 30-layer target: 2, 15, 27)."""
    return [2, num_layers // 2, num_layers - 3]


def boundaries_captured(sglang, target_class, ids, num_layers):
    """What this server captures for these ids (None: a config without ids), ascending; ids out of reach are not in it.

    Stops where the server would end with an error instead; Refusal where the table has no rule.
    """
    row = _known(sglang, target_class)
    if row.shift == NO_SETTER:
        raise Stops(f"{target_class} has no EAGLE-3 capture in SGLang {sglang} ({row.shift}); serve it with a release that has one"
                    f"{_from_first(target_class)} or take another target")
    if row.shift == NOTHING:
        return []
    n = num_layers
    if ids is None:
        marked = [b + row.default_shift for b in defaults(n)]
    else:
        marked = [i + _plus(row.shift, ids, n) for i in ids]
    if row.flags or row.indexes:
        if any(not -n <= b < n for b in marked):
            raise Stops(f"SGLang {sglang} marks layers of a {target_class} by index, and ids {ids} mean {marked}: an IndexError with {n} "
                        f"layers; use ids up to {n - 2}")
        marked = [b % n if row.flags else b for b in marked]
    captured = sorted({b for b in marked if 0 <= b < n or row.last and b == n})
    if 0 in captured and not _since(sglang, row.embedding_since):
        raise Stops(f"ids {ids} ask SGLang {sglang} for boundary 0 of a {target_class}, the embedding, where it adds a residual that does "
                    "not exist yet: a TypeError at the first request; use boundaries from 1 on")
    return captured


def graphs_capture(sglang, target_class, ids, num_layers):
    """What the decode graphs capture. Before 0.5.11 the defaults, whatever the ids: a draft with other ids sees its own states in
    prefill only (classes whose rule has `flags`: both sets there, a width error), unless the server runs with --disable-cuda-graph."""
    return boundaries_captured(sglang, target_class, ids if _since(sglang, GRAPHS_READ_IDS_SINCE) else None, num_layers)


def ids_to_write(sglang, target_class, boundaries, num_layers):
    """The ids that this server turns into `boundaries` (ascending, each once); a Refusal where none exist or the rule is unknown.

    Of several answers the one that means the same in most releases: boundary - 1.
    """
    boundaries = list(boundaries)
    row = _known(sglang, target_class)
    for ids in _ways(boundaries):
        if _captured_or_none(sglang, target_class, ids, num_layers) == boundaries:
            return ids
    if row.shift in (NO_SETTER, NOTHING):
        raise Refusal(f"SGLang {sglang} captures nothing of a {target_class} ({row.shift}); serve it with a release that does"
                      f"{_from_first(target_class)} or take another target")
    highest = num_layers if row.last else num_layers - 1
    raise Refusal(f"no layer ids make SGLang {sglang} capture the boundaries {boundaries} of a {target_class} with {num_layers} layers "
                  f"({row.shift}; 1 to {highest} can be reached, ascending, each once); change capture.layer_ids or capture.offset")


def portable_ids(target_class, boundaries, num_layers):
    """The ids that mean `boundaries` in every release that captures anything of this class, or None."""
    releases = _capturing(target_class)
    means = lambda ids: all(_captured_or_none(v, target_class, ids, num_layers) == list(boundaries) for v in releases)
    return next((ids for ids in _ways(list(boundaries)) if releases and means(ids)), None)


def first_with(target_class):
    """The first release that captures anything of this class, or None. All later ones do too."""
    return next(iter(_capturing(target_class)), None)


def partial_sums(sglang, target_class):
    """The PARTIAL_SUMS entry that applies, or None."""
    return _fault(PARTIAL_SUMS, sglang, target_class)


def without_residual(sglang, target_class):
    """The WITHOUT_RESIDUAL entry that applies, or None."""
    return _fault(WITHOUT_RESIDUAL, sglang, target_class)


def _capturing(target_class):
    return [v for v in RELEASES if (row := rule_for(v, target_class)) and row.shift not in (NO_SETTER, NOTHING)]


def _plus(shift, ids, num_layers):
    if shift == PLUS_ONE_IF_FIRST_IS_1:
        return int(bool(ids) and ids[0] == 1)
    if shift == AS_THEY_ARE_IF_MAX_IS_N:
        return int(not ids or max(ids) != num_layers)
    return 1


def _ways(boundaries):
    """Ids worth trying. The last one: order is free, so a boundary 1 can hide from a rule that looks at the first id."""
    if boundaries:
        yield [b - 1 for b in boundaries]
        yield boundaries
        yield boundaries[::-1]


def _captured_or_none(sglang, target_class, ids, num_layers):
    if min(ids) < 0:
        return None  # an id below 0 happens to work here and there; nobody should write one
    try:
        return boundaries_captured(sglang, target_class, ids, num_layers)
    except Stops:
        return None


def _version(text):
    """Version, or None where it is outside the table. A build of a release (0.5.15.post1+cu130) counts as that release."""
    try:
        version = Version(Version(str(text)).public)
    except InvalidVersion:
        return None
    return version if Version(RELEASES[0]) <= version <= Version(RELEASES[-1]) else None


def _since(sglang, release):
    return release is not None and _version(sglang) >= Version(release)


def _known(sglang, target_class):
    row = rule_for(sglang, target_class)
    if row:
        return row
    if _version(sglang) is None:
        raise Refusal(f"no engine rules for SGLang {sglang}; the table in stages/contract/rules.py holds {RELEASES[0]} to {RELEASES[-1]}. "
                      "Serve with one of these, or check the new release's setters and extend the table")
    later = _from_first(target_class)
    raise Refusal(f"no engine rule for {target_class} in SGLang {sglang}{later}; add a row to stages/contract/rules.py once its "
                  "set_eagle3_layers_to_capture has been read")


def _from_first(target_class):
    first = first_with(target_class)
    return f" (from {first} on)" if first else ""


def _fault(table, sglang, target_class):
    version = _version(sglang)
    return next((f for f in table if version and target_class in f.classes and Version(f.since) <= version
                 and (f.before is None or version < Version(f.before))), None)
