"""Engine rules: how a given SGLang turns the layer ids of a draft's config into the boundaries that it captures.

Read in the 0.5.15.post1 wheel (the setter `set_eagle3_layers_to_capture` of each class): explicit ids get +1, since the
layer loop captures what *enters* a layer, except that DeepSeek-V2/V3 (and so Kimi-K2.5) and GLM4-MoE-lite add the 1
only if the first id is 1 (models/deepseek_v2.py:2915-2920, glm4_moe_lite.py:1036-1041; sglang#25454).
"""
from stages.lib.refusal import Refusal

ALWAYS_PLUS_ONE, PLUS_ONE_IF_FIRST_IS_1 = "+1", "+1 only if ids[0] == 1"

# target class -> rule, for SGLang 0.5.15.post1
RULES = {
    "0.5.15.post1": {
        "LlamaForCausalLM": ALWAYS_PLUS_ONE, "Qwen2ForCausalLM": ALWAYS_PLUS_ONE, "Qwen3ForCausalLM": ALWAYS_PLUS_ONE,
        "Qwen2MoeForCausalLM": ALWAYS_PLUS_ONE, "Qwen3MoeForCausalLM": ALWAYS_PLUS_ONE,
        "GptOssForCausalLM": ALWAYS_PLUS_ONE, "Glm4MoeForCausalLM": ALWAYS_PLUS_ONE,
        "Gemma3ForCausalLM": ALWAYS_PLUS_ONE, "Gemma3ForConditionalGeneration": ALWAYS_PLUS_ONE,
        "DeepseekV2ForCausalLM": PLUS_ONE_IF_FIRST_IS_1, "DeepseekV3ForCausalLM": PLUS_ONE_IF_FIRST_IS_1,
        "KimiK25ForConditionalGeneration": PLUS_ONE_IF_FIRST_IS_1, "Glm4MoeLiteForCausalLM": PLUS_ONE_IF_FIRST_IS_1,
    },
}


def boundaries_captured(sglang, target_class, ids):
    """What this server captures for these ids: ascending boundaries, whatever the order of the ids."""
    rule = RULES[sglang][target_class]
    plus = 1 if rule == ALWAYS_PLUS_ONE or ids[0] == 1 else 0
    return sorted(i + plus for i in ids)


def ids_to_write(sglang, target_class, boundaries):
    """The ids that this server turns into `boundaries`; a Refusal where none exist or the rule is unknown."""
    if target_class not in RULES.get(sglang, {}):
        raise Refusal(f"no engine rule for {target_class} in SGLang {sglang}; known: {', '.join(RULES)} with "
                      f"{', '.join(next(iter(RULES.values())))}. Add a row to stages/contract/rules.py")
    for ids in ([b - 1 for b in boundaries], list(boundaries)):
        if min(ids) >= 0 and boundaries_captured(sglang, target_class, ids) == list(boundaries):
            return ids
    raise Refusal(f"SGLang {sglang} cannot capture the boundaries {list(boundaries)} of a {target_class} "
                  f"({RULES[sglang][target_class]}): boundary 0 is the embedding, which no id reaches; use capture.layer_ids "
                  "and capture.offset that start at boundary 1 or later")
