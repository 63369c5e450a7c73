"""Faults to plant into a healthy draft: each of the serving contract's silent failures that can stand in a file, a config or a flag.

A `Plan` is a draft in memory; a plant changes one thing in it, as a trainer, a converter or a hand would get it wrong.
"""
import copy
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from stages.contract.check import Engine, Target
from stages.lib import files
from stages.lib.served_folder import digest

IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass
class Plan:
    config: dict
    tensors: dict
    training: dict | None
    target: Target
    engine: Engine
    shards: dict = field(default_factory=dict)  # file name: names of its tensors; {} = one file
    index: dict | None = None                   # weight_map
    beside: dict = field(default_factory=dict)  # further files: name -> bytes

    def write(self, folder):
        folder.mkdir(parents=True)
        files.write_json(folder / "config.json", self.config)
        for name, names in (self.shards or {"model.safetensors": list(self.tensors)}).items():
            save_file({n: self.tensors[n].clone().contiguous() for n in names}, folder / name, {"format": "pt"})
        if self.index is not None:
            files.write_json(folder / "model.safetensors.index.json", {"weight_map": self.index})
        if self.training is not None:
            files.write_json(folder / "training.json", self.training)
        for name, content in self.beside.items():
            (folder / name).write_bytes(content)
        return folder

    def copy(self):
        return Plan(copy.deepcopy(self.config), dict(self.tensors), copy.deepcopy(self.training), self.target, self.engine,
                    copy.deepcopy(self.shards), copy.deepcopy(self.index), dict(self.beside))

    @property
    def eagle(self):
        return self.config["eagle_config"]

    def rename(self, pattern, new):
        self.tensors = {re.sub(pattern, new, name): w for name, w in self.tensors.items()}

    def set_target(self, **keys):
        self.target = Target({**self.target.config, **keys}, None)

    def serve(self, version=None, **flags):
        given = {name if name.isupper() else name.replace("_", "-"): value for name, value in flags.items()}
        self.engine = Engine(version or self.engine.version, {**GOOD_LAUNCH, **given} if flags else {})


GOOD_LAUNCH = {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "draft", "speculative-num-steps": "3",
               "speculative-eagle-topk": "1", "speculative-num-draft-tokens": "4"}


def plan_of(folder, target, engine):
    """The Plan of an exported folder."""
    folder = Path(folder)
    return Plan(files.read_json(folder / "config.json"), load_file(folder / "model.safetensors"),
                files.read_json(folder / "training.json"), target, engine)


# Names and tensors.

def unknown_prefix(p):
    p.rename(r"^", "draft_model.")


def wrapped_layer(p):
    p.rename(r"^midlayer\.", "decoder.layers.0.")


def new_names_on_an_old_server(p):
    p.rename(r"^midlayer\.", "layers.0.")
    p.serve("0.5.11")


def head_missing(p):
    del p.tensors["lm_head.weight"]


def norm_missing(p):
    del p.tensors["norm.weight"]


def hidden_norm_missing(p):
    del p.tensors["midlayer.hidden_norm.weight"]


def wrong_shape(p):
    p.tensors["midlayer.mlp.gate_proj.weight"] = p.tensors["midlayer.mlp.gate_proj.weight"][:-8]


def qk_norms(p):
    for name in ("q_norm", "k_norm"):
        p.tensors[f"midlayer.self_attn.{name}.weight"] = torch.ones(p.config["head_dim"])


def qkv_bias(p):
    for name in ("q_proj", "k_proj", "v_proj"):
        p.tensors[f"midlayer.self_attn.{name}.bias"] = torch.zeros(len(p.tensors[f"midlayer.self_attn.{name}.weight"]))


def fc_bias(p):
    p.tensors["fc.bias"] = torch.zeros(p.config["hidden_size"])


def input_norm(p):
    p.tensors["input_norm.weight"] = torch.ones(p.tensors["fc.weight"].shape[1])


def extra_tensor(p):
    p.tensors["gate.weight"] = torch.zeros(4, 4)


def quantised_weight(p):
    p.tensors["fc.weight"] = p.tensors["fc.weight"].to(torch.float8_e4m3fn)


def fc_norm_without_weights(p):
    p.config["fc_norm"] = True


def fc_norm_without_flag(p):
    for i in range(len(p.eagle[IDS])):
        p.tensors[f"fc_norm.{i}.weight"] = torch.ones(p.config["target_hidden_size"])


def own_width_without_embedding(p):
    p.config["target_hidden_size"] *= 2
    p.tensors["fc.weight"] = p.tensors["fc.weight"].repeat(1, 2)
    p.set_target(hidden_size=p.config["target_hidden_size"])


def deeper_file(p):
    p.tensors |= {name.replace("midlayer", "layers.1"): w for name, w in p.tensors.items() if name.startswith("midlayer")}


# The config.

def no_architecture(p):
    del p.config["architectures"]


def plain_llama(p):
    p.config["architectures"] = ["LlamaForCausalLM"]


def no_model_type(p):
    del p.config["model_type"]


def no_ids(p):
    del p.eagle[IDS]


def no_eagle_config(p):
    del p.config["eagle_config"]


def ids_at_top_level(p):
    p.config[IDS] = p.config.pop("eagle_config")[IDS]


def ids_nested_once_more(p):
    p.config["eagle_config"] = {"eagle_config": p.config["eagle_config"]}


def eagle_config_as_text(p):
    p.config["eagle_config"] = json.dumps(p.config["eagle_config"])


def aux_off(p):
    p.eagle["use_aux_hidden_state"] = False


def layers_of_the_target(p):
    p.config["num_hidden_layers"] = p.target.num_layers


def tied(p):
    p.config["tie_word_embeddings"] = True


def no_draft_vocab_size(p):
    del p.config["draft_vocab_size"]


def null_draft_vocab_size(p):
    p.config["draft_vocab_size"] = None


def wrong_draft_vocab_size(p):
    p.config["draft_vocab_size"] += 8


def other_vocab_size(p):
    p.config["vocab_size"] += 64


def no_target_hidden_size_of_a_wider_target(p):
    p.config["target_hidden_size"] = p.config["hidden_size"]
    p.set_target(hidden_size=2 * p.config["hidden_size"])
    p.tensors["fc.weight"] = p.tensors["fc.weight"].repeat(1, 2)


def no_head_dim(p):
    del p.config["head_dim"]  # the loader takes hidden_size / heads


def no_theta(p):
    del p.config["rope_theta"], p.config["rope_parameters"]


def theta_of_the_new_key_on_an_old_server(p):
    del p.config["rope_theta"]
    p.eagle[IDS], p.training["boundaries"] = [1, 4, 6], [2, 5, 7]  # the defaults: those releases' decode graphs know no others
    p.set_target(num_hidden_layers=10)
    p.serve("0.5.9")


def other_theta(p):
    p.config["rope_theta"] = p.config["rope_parameters"]["rope_theta"] = 1e6


def rope_scaling(p):
    p.config["rope_parameters"] = {"rope_type": "linear", "factor": 4.0, "rope_theta": p.config["rope_theta"]}


def no_dtype(p):
    del p.config["torch_dtype"]


def float16(p):
    p.config["torch_dtype"] = "float16"


def short_context(p):
    p.config["max_position_embeddings"] //= 2


def no_eps(p):
    del p.config["rms_norm_eps"]


def norm_output(p):
    p.config["norm_output"] = True


def norm_before_residual(p):
    p.config["norm_before_residual"] = True


def norm_before_fc(p):
    p.config["norm_before_fc"] = True
    input_norm(p)


def attention_bias(p):
    p.config["attention_bias"] = True


def gelu(p):
    p.config["hidden_act"] = "gelu"


def num_aux(p):
    p.config["num_aux_hidden_states"] = len(p.eagle[IDS]) + 1


def nested_speculators(p):
    inner = {key: p.config.pop(key) for key in list(p.config) if key not in ("architectures", "draft_vocab_size", "eagle_config")}
    p.config |= {"speculators_model_type": "eagle3", "transformer_layer_config": inner}


def mrope_target(p):
    p.set_target(rope_parameters={"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": p.config["rope_theta"]})


def quantization_config(p):
    p.config["quantization_config"] = {"quant_method": "fp8"}


def one_state(p):
    p.eagle[IDS], p.training["boundaries"] = p.eagle[IDS][-1:], p.training["boundaries"][-1:]
    p.tensors["fc.weight"] = p.tensors["fc.weight"][:, -p.config["target_hidden_size"]:]


def text_for_a_number(p):
    p.config["num_attention_heads"] = "four"


def eagle31_on_an_old_server(p):
    p.config["norm_output"] = p.training["norm_output"] = True
    p.serve("0.5.11")


# Ids.

def one_too_high(p):
    p.eagle[IDS] = [i + 1 for i in p.eagle[IDS][:-1]] + [p.eagle[IDS][-1]]


def boundaries_for_ids(p):
    p.set_target(num_hidden_layers=p.target.num_layers + 2)
    p.eagle[IDS] = list(p.training["boundaries"])


def ids_of_an_older_deepseek(p):
    p.set_target(architectures=["DeepseekV3ForCausalLM"], num_hidden_layers=61)
    p.eagle[IDS], p.training["boundaries"] = [2, 30, 58], [3, 31, 59]


def ids_of_one_deepseek_release(p):
    ids_of_an_older_deepseek(p)
    p.training["boundaries"] = [2, 30, 58]


def kimi_ids_of_0_5_13(p):
    p.set_target(architectures=["KimiK25ForConditionalGeneration"], num_hidden_layers=61)
    p.eagle[IDS], p.training["boundaries"] = [3, 31, 59], [3, 31, 59]
    p.serve("0.5.12.post1")


def descending(p):
    """Trained in the config's order; with ascending training the server's own order would make it right."""
    p.eagle[IDS], p.training["boundaries"] = p.eagle[IDS][::-1], p.training["boundaries"][::-1]


def descending_without_record(p):
    p.eagle[IDS], p.training = p.eagle[IDS][::-1], None


def twice(p):
    p.eagle[IDS][1] = p.eagle[IDS][0]


def last_layer(p):
    p.eagle[IDS][-1] = p.target.num_layers - 1


def far_away(p):
    p.eagle[IDS][-1] = 10 * p.target.num_layers


def from_the_end(p):
    p.eagle[IDS][-1] = -2


def a_state_too_few(p):
    p.eagle[IDS] = p.eagle[IDS][:2]
    p.training["boundaries"] = p.training["boundaries"][:2]


def class_without_capture(p):
    p.set_target(architectures=["Glm4ForCausalLM"])


def class_that_captures_nothing(p):
    p.set_target(architectures=["Qwen3_5ForConditionalGeneration"])


def gemma_without_residual(p):
    p.set_target(architectures=["Gemma3ForCausalLM"])
    p.serve("0.5.23")


def graphs_with_default_ids(p):
    p.rename(r"^layers\.0\.", "midlayer.")
    p.serve("0.5.10.post1")


def early_states_of_a_vision_target(p):
    p.set_target(architectures=["Qwen3VLForConditionalGeneration"])


def shallow_defaults(p):
    del p.eagle[IDS]
    p.training["boundaries"] = [2, 3]
    p.set_target(num_hidden_layers=6)


# The map.

def no_map(p):
    del p.tensors["d2t"]


def float_map(p):
    p.tensors["d2t"] = p.tensors["d2t"].to(torch.bfloat16)


def target_ids(p):
    return p.tensors["d2t"] + torch.arange(len(p.tensors["d2t"]))


def absolute_map(p):
    p.tensors["d2t"] = target_ids(p)


def absolute_map_without_record(p):
    absolute_map(p)
    p.training = None


def counting_map(p):
    p.tensors["d2t"] = torch.arange(len(p.tensors["d2t"]))


def shuffled_map(p):
    ids = target_ids(p)
    p.tensors["d2t"] = ids.flip(0) - torch.arange(len(ids))


def map_of_a_larger_target(p):
    p.tensors["d2t"] = p.tensors["d2t"].clone()
    p.tensors["d2t"][-1] += p.config["vocab_size"]
    p.training["vocabulary"] = digest(p.tensors["d2t"])


def end_token_outside(p):
    p.set_target(eos_token_id=next(i for i in range(p.config["vocab_size"]) if i not in set(target_ids(p).tolist())))


def stale_map(p):
    size, vocab = len(p.tensors["d2t"]), p.config["vocab_size"]
    p.tensors["d2t"] = torch.randperm(vocab, generator=torch.Generator().manual_seed(5))[:size].sort().values - torch.arange(size)


def two_maps(p):
    ids = target_ids(p)
    p.tensors["t2d"] = torch.zeros(p.config["vocab_size"], dtype=torch.bool)
    p.tensors["t2d"][ids[:-1]] = True
    p.tensors["t2d"][next(i for i in range(p.config["vocab_size"]) if i not in set(ids.tolist()))] = True


def short_map(p):
    p.tensors["d2t"] = p.tensors["d2t"][:-1].clone()


# Files.

def stale_index(p):
    names = list(p.tensors)
    p.shards = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    p.index = {name: "model-1.safetensors" for name in names}


def left_out_shard(p):
    names = [n for n in p.tensors if n != "t2d"]
    p.tensors["t2d"] = torch.zeros(p.config["vocab_size"], dtype=torch.bool)
    p.tensors["t2d"][target_ids(p)] = True
    p.shards = {"model.safetensors": names, "old.safetensors": ["t2d"]}
    p.index = {name: "model.safetensors" for name in names}


def pickle_beside(p):
    p.beside["pytorch_model.bin"] = b"never opened"


def raw_modelopt(p):
    p.rename(r"^", "eagle_module.")
    p.tensors |= {"model.norm.weight": torch.ones(p.config["hidden_size"]), "lm_head.weight": torch.zeros(4, p.config["hidden_size"])}


def two_sets_of_weights(p):
    p.shards = {"model.safetensors": list(p.tensors), "old.safetensors": ["fc.weight"]}


# The launch line.

def eagle_algorithm(p):
    p.serve(speculative_algorithm="EAGLE")


def no_algorithm(p):
    p.serve(speculative_algorithm=None)


def no_draft_path(p):
    p.serve(speculative_draft_model_path=None)


def more_draft_tokens_than_steps(p):
    p.serve(speculative_num_draft_tokens="8")


def token_map(p):
    p.serve(speculative_token_map="hot.pt")


def inherited_quantization(p):
    p.serve(quantization="fp8")


def leaking_override(p):
    p.serve(json_model_override_args='{"num_hidden_layers": 2}')


def unlike_window(p):
    p.serve(speculative_draft_window_size="64")


def simulated(p):
    p.serve(SGLANG_SIMULATE_ACC_LEN="3")


def loose_threshold(p):
    p.serve(speculative_accept_threshold_single="0.5")


def partial_sums(p):
    p.set_target(architectures=["GptOssForCausalLM"])
    p.serve(tp_size="2")


def tp_does_not_divide(p):
    p.serve(tp_size="3")


def dtype_flag_is_fine_but_vocab_is_not(p):
    p.serve(dtype="bfloat16", tp_size="2")
    p.config["vocab_size"] += 64


# Identity.

def other_tokenizer(p):
    p.training["target_files"]["tokenizer.json"] = "0" * 64


def other_template(p):
    p.training["target_files"]["chat_template.jinja"] = "0" * 64


def other_target_config(p):
    p.training["target_files"]["config.json"] = "0" * 64


PLANTS = {
    "EY-TENSOR-01": [unknown_prefix, wrapped_layer, new_names_on_an_old_server], "EY-TENSOR-02": [norm_missing, hidden_norm_missing],
    "EY-TENSOR-03": [head_missing], "EY-TENSOR-04": [wrong_shape], "EY-TENSOR-05": [qk_norms], "EY-TENSOR-06": [qkv_bias],
    "EY-TENSOR-07": [fc_bias], "EY-TENSOR-08": [input_norm], "EY-TENSOR-09": [extra_tensor], "EY-TENSOR-10": [quantised_weight],
    "EY-TENSOR-12": [fc_norm_without_weights, fc_norm_without_flag], "EY-TENSOR-15": [own_width_without_embedding],
    "EY-TENSOR-16": [deeper_file],
    "EY-CONFIG-01": [no_architecture, plain_llama], "EY-CONFIG-02": [no_model_type],
    "EY-CONFIG-03": [no_ids, no_eagle_config, eagle_config_as_text], "EY-CONFIG-04": [ids_at_top_level, ids_nested_once_more],
    "EY-CONFIG-05": [aux_off], "EY-CONFIG-06": [layers_of_the_target], "EY-CONFIG-07": [tied], "EY-CONFIG-08": [no_draft_vocab_size],
    "EY-CONFIG-09": [null_draft_vocab_size], "EY-CONFIG-10": [wrong_draft_vocab_size],
    "EY-CONFIG-11": [other_vocab_size, dtype_flag_is_fine_but_vocab_is_not],
    "EY-CONFIG-12": [no_target_hidden_size_of_a_wider_target], "EY-CONFIG-13": [no_head_dim],
    "EY-CONFIG-14": [no_theta, theta_of_the_new_key_on_an_old_server], "EY-CONFIG-15": [other_theta], "EY-CONFIG-16": [rope_scaling],
    "EY-CONFIG-17": [no_dtype], "EY-CONFIG-18": [float16], "EY-CONFIG-19": [short_context], "EY-CONFIG-20": [no_eps],
    "EY-CONFIG-21": [norm_output], "EY-CONFIG-22": [norm_before_residual], "EY-CONFIG-23": [norm_before_fc],
    "EY-CONFIG-24": [attention_bias], "EY-CONFIG-25": [gelu], "EY-CONFIG-26": [num_aux], "EY-CONFIG-27": [nested_speculators],
    "EY-CONFIG-28": [mrope_target], "EY-CONFIG-29": [quantization_config], "EY-CONFIG-30": [one_state],
    "EY-CONFIG-31": [text_for_a_number], "EY-CONFIG-32": [eagle31_on_an_old_server],
    "EY-RULE-01": [class_without_capture], "EY-RULE-02": [class_that_captures_nothing],
    "EY-RULE-03": [one_too_high, boundaries_for_ids, ids_of_an_older_deepseek, kimi_ids_of_0_5_13],
    "EY-RULE-04": [descending, descending_without_record],
    "EY-RULE-05": [twice], "EY-RULE-06": [last_layer, far_away], "EY-RULE-07": [from_the_end], "EY-RULE-08": [a_state_too_few],
    "EY-RULE-09": [shallow_defaults], "EY-RULE-11": [gemma_without_residual], "EY-RULE-13": [graphs_with_default_ids],
    "EY-VOCAB-01": [no_map], "EY-VOCAB-02": [float_map], "EY-VOCAB-03": [absolute_map, absolute_map_without_record],
    "EY-VOCAB-04": [counting_map], "EY-VOCAB-05": [shuffled_map], "EY-VOCAB-06": [map_of_a_larger_target], "EY-VOCAB-07": [two_maps],
    "EY-VOCAB-08": [stale_map], "EY-VOCAB-09": [short_map],
    "EY-FILE-02": [left_out_shard], "EY-FILE-03": [stale_index], "EY-FILE-04": [two_sets_of_weights], "EY-FILE-05": [raw_modelopt],
    "EY-FLAG-01": [eagle_algorithm, no_algorithm], "EY-FLAG-02": [no_draft_path], "EY-FLAG-03": [inherited_quantization],
    "EY-FLAG-04": [leaking_override], "EY-FLAG-06": [unlike_window], "EY-FLAG-07": [simulated], "EY-FLAG-08": [loose_threshold],
    "EY-FLAG-09": [partial_sums], "EY-FLAG-10": [tp_does_not_divide],
    "EY-TARGET-01": [other_tokenizer], "EY-TARGET-02": [other_template], "EY-TARGET-03": [other_target_config],
}
# Worth a word, but no fault.
NOTED = {"EY-RULE-10": [ids_of_one_deepseek_release], "EY-RULE-12": [early_states_of_a_vision_target], "EY-VOCAB-11": [end_token_outside],
         "EY-FLAG-05": [more_draft_tokens_than_steps], "EY-FLAG-11": [token_map], "EY-FILE-01": [pickle_beside]}
CASES = [(code, plant) for code, plants in PLANTS.items() for plant in plants]
