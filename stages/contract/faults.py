"""Every fault that Eyrie names: its stable code, its cause, what the server makes of it, and the remedy.

One row a fault; the functions that find them are in rules, tensors, config, vocabulary, launch, identity and probes, and
docs/contract.md is made from this table (tools/contract_page.py). A code is never used again for something else.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    cause: str    # one sentence: what is wrong
    symptom: str  # what the server does with it
    remedy: str
    source: str   # where the rule was read or seen: SGLang file at 0.5.15.post1 unless a version is named, issue, paper
    unsure: str = ""  # the cause where nothing proves it, in a finding that is no fault


FAULTS = {
    # The files of a draft folder.
    "EY-FILE-01": Fault(
        "pickled weights lie beside the safetensors",
        "another loader or version may take the pickle, and opening it runs its code",
        "delete the pickles, after comparing them in a sandbox if need be",
        "model_loader/loader.py; contract 8.30"),
    "EY-FILE-02": Fault(
        "the index leaves out a weight file",
        "tensors of that file are never read, without a word",
        "delete the file, or write the index anew",
        "model_loader/weight_utils.py, filter_duplicate_safetensors_files_hf"),
    "EY-FILE-03": Fault(
        "the index places tensors in files that lack them",
        "the tensors keep uninitialised memory: index and shards are of two exports",
        "export again into an empty folder",
        "contract 8.30"),
    "EY-FILE-04": Fault(
        "a tensor stands in several files",
        "the file that is read last wins",
        "keep one set of weights in the folder",
        "model_loader/weight_utils.py"),
    "EY-FILE-05": Fault(
        "a raw checkpoint of ModelOpt: the target with the draft in it, the target's config.json, the draft's settings in a pickle",
        "the target is served as its own draft, or the server does not start",
        "export it (scripts/export_hf_checkpoint.py of ModelOpt's examples/speculative_decoding, --model_path and --export_path) and serve "
        "the export",
        "modelopt/torch/export/plugins/hf_spec_export.py"),
    # Names, shapes and values of tensors.
    "EY-TENSOR-01": Fault(
        "the layer's tensors lie under names that this server does not read",
        "all are dropped without a word, the layer keeps uninitialised memory: tau 1.00",
        "rename them to midlayer.*, which every version reads (`--fix` takes off draft_model., eagle., module. and the like, and says "
        "which tensors it lacks where the prefix is another)",
        "models/llama_eagle3.py load_weights; contract 0(b), 3.1; AngelSlim#39"),
    "EY-TENSOR-02": Fault(
        "a tensor that the server needs is missing",
        "nothing reports it: the parameter keeps uninitialised memory",
        "export again; a missing weight cannot be made up",
        "model_loader/loader.py:775-802"),
    "EY-TENSOR-03": Fault(
        "lm_head.weight is missing although draft_vocab_size is set",
        "the head keeps uninitialised memory: tau 1.00",
        "export the head, or set draft_vocab_size to null if the target's own head was used in training",
        "sglang#27829, #27908"),
    "EY-TENSOR-04": Fault(
        "a tensor has another shape than the config gives it",
        "the loader stops with an AssertionError that names no file",
        "export config and weights from the same run",
        "models/llama_eagle3.py; contract 3.1"),
    "EY-TENSOR-05": Fault(
        "the first layer was trained with q_norm and k_norm",
        "both are dropped: the attention computes something else",
        "retrain with a Llama layer; SGLang's draft has no such norms",
        "models/llama_eagle3.py; speculators' Qwen3 layer"),
    "EY-TENSOR-06": Fault(
        "q, k or v were trained with a bias",
        "the biases are dropped",
        "retrain without (bias is always off there)",
        "models/llama_eagle3.py QKVParallelLinear(bias=False)"),
    "EY-TENSOR-07": Fault(
        "fc.bias is in the file but the config does not declare it",
        "the bias is dropped",
        "set bias: true in the config only if o_proj has one too; else retrain fc without",
        "models/llama_eagle3.py LlamaModel"),
    "EY-TENSOR-08": Fault(
        "the draft was trained with a norm before fc (input_norm.weight)",
        "before 0.5.18 the norm is dropped and fc reads other inputs",
        "serve with 0.5.18 or later and norm_before_fc: true, or retrain without",
        "models/llama_eagle3.py 0.5.15.post1 and 0.5.18"),
    "EY-TENSOR-09": Fault(
        "the file holds tensors that the server does not read",
        "they are dropped without a word: part of what was trained is not served",
        "find out what they are; export only what the server reads",
        "models/llama_eagle3.py load_weights"),
    "EY-TENSOR-10": Fault(
        "a weight is stored in a type that is no plain float",
        "the loader casts it without its scales",
        "export in bfloat16",
        "model_loader/weight_utils.py"),
    "EY-TENSOR-11": Fault(
        "a weight holds NaN or infinite values",
        "logits are NaN, which the server hides (sanitize_nan_logits): tau 1.00",
        "take an earlier checkpoint; look for the step at which training diverged",
        "contract 8.29; SpecForge#577"),
    "EY-TENSOR-12": Fault(
        "per-state norms (fc_norm) are declared without weights, or shipped without the flag",
        "they stay at one, or are dropped",
        "set fc_norm to what was trained and ship its K weights",
        "models/llama_eagle3.py LlamaModel; EAGLE-3.1"),
    "EY-TENSOR-13": Fault(
        "an MLA draft's tensors carry the prefix `model.` of their module",
        "they are skipped with a warning in the log",
        "remove the prefix (`--fix` does)",
        "models/kimi_k25_eagle3.py:445-493"),
    "EY-TENSOR-14": Fault(
        "an MLA draft has only one of q_a_proj and kv_a_proj_with_mqa",
        "the two are fused on load: a lone one is dropped",
        "export both",
        "models/kimi_k25_eagle3.py:464-489"),
    "EY-TENSOR-15": Fault(
        "embed_tokens.weight is missing although target_hidden_size is not hidden_size",
        "the target's embedding cannot be shared: it keeps uninitialised memory",
        "export the draft's embedding",
        "models/llama.py:792-798"),
    "EY-TENSOR-16": Fault(
        "the file holds more layers than the config builds",
        "the further layers are dropped",
        "set num_hidden_layers to what was trained (0.5.12 and later)",
        "models/llama_eagle3.py:175-180"),
    "EY-TENSOR-18": Fault(
        "the shipped embedding is not the target's",
        "the server overwrites it with the target's: the draft was trained on other embeddings",
        "train on the served target, or look which target it was",
        "models/llama.py:792-798; TorchSpec#38"),
    # Keys of the draft's config.json.
    "EY-CONFIG-01": Fault(
        "architectures does not name an EAGLE-3 draft class",
        "the server does not start, or serves a plain model as the draft",
        "architectures: [LlamaForCausalLMEagle3]",
        "models/registry.py; contract 2.1"),
    "EY-CONFIG-02": Fault(
        "model_type is missing or unknown",
        "the server does not start (AutoConfig)",
        "model_type: \"llama\"",
        "contract 2.1"),
    "EY-CONFIG-03": Fault(
        "no layer ids in eagle_config",
        "the server falls back to its default boundaries without a word",
        "write the ids of the boundaries that were trained",
        "model_executor/model_runner.py:467-479",
        "no layer ids in eagle_config, and no record of what was trained"),
    "EY-CONFIG-04": Fault(
        "the layer ids stand in another place than eagle_config",
        "they are not read for the capture: default boundaries are used without a word",
        "move them to eagle_config.eagle_aux_hidden_state_layer_ids (`--fix` does)",
        "model_executor/model_runner.py:467-479"),
    "EY-CONFIG-05": Fault(
        "use_aux_hidden_state is off",
        "the draft gets the one post-norm state and fc is bypassed without an error: tau near 1",
        "eagle_config.use_aux_hidden_state: true",
        "model_executor/model_runner.py:471; speculative/eagle_utils.py:431"),
    "EY-CONFIG-06": Fault(
        "num_hidden_layers is more than the file holds",
        "the layers without weights are built and keep uninitialised memory (up to 0.5.11: does not start)",
        "set it to the number of trained layers; never copy the target's config",
        "models/llama_eagle3.py:175-180; speculators#1065"),
    "EY-CONFIG-07": Fault(
        "tie_word_embeddings is on although a head was trained",
        "the trained lm_head is discarded without a word, the embedding is the head",
        "tie_word_embeddings: false (a tied target's config must not be copied)",
        "models/llama_eagle3.py:275"),
    "EY-CONFIG-08": Fault(
        "draft_vocab_size is absent",
        "AttributeError at start",
        "set it to the rows of lm_head",
        "models/llama_eagle3.py:278"),
    "EY-CONFIG-09": Fault(
        "draft_vocab_size is null although a head or a map was trained",
        "the target's head replaces the trained one, or the loader stops on its shape",
        "set it to the rows of lm_head",
        "models/llama_eagle3.py:278; speculative/eagle_worker_v2.py:343-348"),
    "EY-CONFIG-10": Fault(
        "draft_vocab_size is not the number of lm_head rows",
        "AssertionError in the loader",
        "set it to the rows of lm_head",
        "models/llama_eagle3.py:278"),
    "EY-CONFIG-11": Fault(
        "vocab_size is not the target's",
        "shard ranges of the shared embedding are wrong with tp > 1: garbage embeddings",
        "set it to the target's",
        "contract 8.15"),
    "EY-CONFIG-12": Fault(
        "target_hidden_size is not the target's hidden size",
        "fc is built for other inputs, and the embedding is not shared",
        "set it to the target's hidden_size, if fc.weight has a multiple of that in columns; else the draft is for another target",
        "models/llama_eagle3.py:143"),
    "EY-CONFIG-13": Fault(
        "head_dim is absent and hidden_size / heads is not what was trained",
        "q, k, v and o_proj do not fit: AssertionError",
        "write head_dim",
        "contract 2.1; SpecForge#129"),
    "EY-CONFIG-14": Fault(
        "no rope theta",
        "10000 is used without a word",
        "write the value, in both places",
        "models/llama.py:265-277; sfllm#32"),
    "EY-CONFIG-15": Fault(
        "the rope theta that the server reads is not the trained one, or the config holds two",
        "acceptance falls, the more the longer the context",
        "write the theta of the training run, in both places",
        "models/llama.py:265-277; SpecForge#265, #270",
        "the rope theta that the server reads is not the target's, and no record says that the draft was trained with it"),
    "EY-CONFIG-16": Fault(
        "the rope scaling that the server reads is not the trained one",
        "acceptance falls with the length of the context",
        "write the scaling of the training run; if none was trained, none",
        "models/llama.py:265-277; SpecForge#414",
        "the rope scaling that the server reads is not the target's, and no record says that the draft was trained with it"),
    "EY-CONFIG-17": Fault(
        "no dtype, or float32",
        "the draft is loaded in float16",
        "dtype: bfloat16",
        "configs/model_config.py:1542-1578"),
    "EY-CONFIG-18": Fault(
        "the draft's dtype is not the target's",
        "the product in fc fails at the first request",
        "write the dtype that the target is served in (`--fix` does where the weights are stored in it)",
        "contract 2.1"),
    "EY-CONFIG-19": Fault(
        "max_position_embeddings is less than the target's context",
        "the server does not start (or lengthens it without training, by an environment variable)",
        "write the target's; beyond the trained length acceptance falls",
        "configs/model_config.py:675-705; sglang#6783"),
    "EY-CONFIG-20": Fault(
        "rms_norm_eps is not the trained one",
        "small loss at every norm (absent: 1e-6)",
        "write the trained value",
        "contract 8.12",
        "the rms_norm_eps that the server reads is not the target's, and no record says that the draft was trained with it"),
    "EY-CONFIG-21": Fault(
        "norm_output is on but the draft was trained on its un-normed output",
        "the server feeds back the normed state: alpha_1 fine, later ones collapse",
        "delete the key (SpecForge before #879 writes it in another meaning)",
        "models/llama_eagle3.py:237-243; SpecForge#879"),
    "EY-CONFIG-22": Fault(
        "trained with norm_before_residual",
        "the server never reads it: the residual is the un-normed state",
        "retrain with norm_before_residual: false",
        "contract 2.1, 3.4; never read up to 0.5.23"),
    "EY-CONFIG-23": Fault(
        "norm_before_fc is set but this server does not read it",
        "fc reads un-normed states",
        "serve with 0.5.18 or later, or retrain without",
        "models/llama_eagle3.py 0.5.18"),
    "EY-CONFIG-24": Fault(
        "attention_bias or bias is on without the bias weights",
        "o_proj (and fc) get an uninitialised bias",
        "attention_bias: false, bias: false",
        "models/llama.py:282-299"),
    "EY-CONFIG-25": Fault(
        "hidden_act is not silu",
        "the server does not start",
        "hidden_act: silu, and retrain if another was trained",
        "models/llama.py LlamaMLP"),
    "EY-CONFIG-26": Fault(
        "num_aux_hidden_states is not the number of ids",
        "fc and capture disagree in width: an error at the first forward",
        "delete the key",
        "models/llama_eagle3.py:149"),
    "EY-CONFIG-27": Fault(
        "the config is nested as speculators writes it",
        "SGLang reads none of the nested keys: Llama's defaults are used",
        "convert it (`--fix` does)",
        "speculators 0.9.0; contract 3.4"),
    "EY-CONFIG-28": Fault(
        "the target uses multimodal rope and the draft's config lacks mrope_section",
        "positions of images and text are mixed up: tau near 1",
        "write the target's mrope_section into rope_scaling",
        "models/llama_eagle3.py LlamaModel; SpecForge#310"),
    "EY-CONFIG-29": Fault(
        "the draft's config carries a quantization_config",
        "bf16 weights are loaded as quantised ones",
        "delete it",
        "contract 2.2"),
    "EY-CONFIG-30": Fault(
        "one aux state of the draft's own width",
        "fc is skipped (input width equals hidden size): the fusion that was trained is bypassed",
        "train on two or more boundaries",
        "models/llama_eagle3.py:213-221"),
    "EY-CONFIG-31": Fault(
        "a key has a value of the wrong kind",
        "the server fails at start, or takes it for something else",
        "write a value of the expected kind",
        "contract 2.1"),
    "EY-CONFIG-32": Fault(
        "this server version cannot build such a draft",
        "it does not start, or builds a three-state one-layer draft",
        "serve with a later version",
        "contract 9"),
    # Layer ids and what this server makes of them.
    "EY-RULE-01": Fault(
        "this server version has no EAGLE-3 capture for the target's class",
        "AttributeError at start, or nothing captured by a wrapper that looks away",
        "serve a release that captures, if any does; else another target (a class of a later release has to be read into the table first)",
        "contract 1.2"),
    "EY-RULE-02": Fault(
        "this server version sets the ids of the target's class but captures nothing",
        "an unpacking error at the first forward",
        "serve a release that captures, if any does",
        "models/qwen3_5.py:1258-1307"),
    "EY-RULE-03": Fault(
        "the server captures other boundaries than the draft was trained on",
        "no error; each wrong state costs tenths of tau, all of them more",
        "write the ids that give the trained boundaries (`--fix` does, by training.json or --trained-on); where there are none serve "
        "another release, or retrain",
        "contract 0(a), 1.2; sglang#25454",
        "the server captures other boundaries than drafts of this trainer usually mean by such ids"),
    "EY-RULE-04": Fault(
        "the ids are not ascending",
        "states are concatenated in ascending layer order whatever the config says: fc reads its chunks swapped",
        "if the draft was trained on ascending states, sort the ids; if not, retrain or permute fc's columns",
        "layers/logits_processor.py:671; contract 1.1"),
    "EY-RULE-05": Fault(
        "an id occurs twice",
        "it is captured once: one state too few for fc",
        "distinct ids, and retrain",
        "contract 1.3"),
    "EY-RULE-06": Fault(
        "an id lies beyond what this class can capture",
        "its state is never captured: one state too few for fc",
        "ids of layers before the last one",
        "contract 1.3"),
    "EY-RULE-07": Fault(
        "an id is negative",
        "by class: an error, the embedding, or a layer from the end, without a word",
        "the 0-based id itself",
        "contract 1.3"),
    "EY-RULE-08": Fault(
        "the number of captured states is not what fc was trained for",
        "a shape error at the first forward",
        "as many ids as fc has chunks",
        "contract 1.3"),
    "EY-RULE-09": Fault(
        "the target is too shallow for the default ids",
        "[2, n/2, n-3] are not three boundaries",
        "write ids",
        "contract 1.3"),
    "EY-RULE-10": Fault(
        "other versions read these ids differently",
        "the same folder serves other boundaries after an upgrade",
        "pin the version, or write ids that mean the same in every release, if there are any",
        "contract 9"),
    "EY-RULE-11": Fault(
        "this server version captures something else than the layer's full output for the target's class",
        "the draft reads incomplete states: tau near 1",
        "serve another version",
        "sglang#39286 (Gemma-3 in 0.5.23)"),
    "EY-RULE-12": Fault(
        "the server captures these states before deepstack features are added",
        "early boundaries differ from those of a plain forward",
        "ids of layer 3 or later for this class",
        "SpecForge#431"),
    "EY-RULE-13": Fault(
        "the decode graphs of this server version capture its default boundaries, whatever the ids",
        "prefill gives the draft its own states, every verify pass the default ones",
        "serve 0.5.11 or later, use the default boundaries, or --disable-cuda-graph (with --launch it is seen)",
        "0.5.10.post1 model_executor/cuda_graph_runner.py:648, model_runner.py:668"),
    "EY-RULE-14": Fault(
        "what the ids meant in training is not known",
        "it captures what its rule makes of them",
        "--trained-on outputs (of layers: SpecForge, ModelOpt) or boundaries (speculators), or boundaries in training.json",
        "contract 1.2, 3.4"),
    # The draft vocabulary.
    "EY-VOCAB-01": Fault(
        "the draft vocabulary is smaller than the target's and there is no d2t",
        "draft ids are taken for target ids",
        "export the map (`--fix` makes it from t2d, if that is in the file)",
        "speculative/eagle_worker_v2.py:630, 726"),
    "EY-VOCAB-02": Fault(
        "d2t is not stored as integers",
        "a float map is rounded: in bfloat16 every id over 256 is wrong",
        "export it as int64 (`--fix` does where nothing was rounded, or t2d in the file says what was)",
        "contract 8.30"),
    "EY-VOCAB-03": Fault(
        "d2t holds target ids instead of offsets",
        "the server adds the draft id again: other words, or ids out of range",
        "subtract the draft ids (`--fix` does)",
        "models/llama_eagle3.py load_weights; SpecForge#272, verl-SpeCo#67"),
    "EY-VOCAB-04": Fault(
        "d2t counts 0, 1, 2, and so on",
        "the server reads it as the even ids 0, 2, 4, and so on",
        "for an identity map write zeros; else export the trained map",
        "contract 3.1"),
    "EY-VOCAB-05": Fault(
        "the ids of d2t do not ascend",
        "rows of lm_head and of the map are of two orders, or ids occur twice",
        "export head and map from the same run",
        "contract 8.3"),
    "EY-VOCAB-06": Fault(
        "d2t leads out of the target's vocabulary",
        "out-of-range ids; checked only under SGLANG_ENABLE_ASYNC_ASSERT=1",
        "export the map of this target",
        "environ.py:695"),
    "EY-VOCAB-07": Fault(
        "d2t and t2d are maps of two vocabularies",
        "the server reads d2t only",
        "export both from the same run",
        "SpecForge PR#602"),
    "EY-VOCAB-08": Fault(
        "d2t is not the map that the draft was trained with",
        "every word is another: tau 1.00",
        "export the trained map (a cached map is often reused)",
        "SpecForge PR#602, #534; Automodel#2447"),
    "EY-VOCAB-09": Fault(
        "d2t has another length than lm_head has rows",
        "rows beyond it have no word",
        "export head and map from the same run",
        "contract 3.1"),
    "EY-VOCAB-10": Fault(
        "the draft vocabulary misses much of what the target says",
        "tau is capped: an answer's word outside it ends every chain",
        "a larger draft.vocab_size, chosen on the target's own answers",
        "contract 8.17"),
    "EY-VOCAB-11": Fault(
        "the target's end token is outside the draft vocabulary",
        "the last word of every answer is never drafted",
        "choose the vocabulary on whole answers",
        "contract 8.17"),
    # How the server is started.
    "EY-FLAG-01": Fault(
        "the algorithm is not EAGLE3",
        "aux capture is off, the target's head replaces the draft's, fc and d2t are bypassed: tau 1.00, no error",
        "--speculative-algorithm EAGLE3",
        "speculative/eagle_worker_v2.py:340-366; sglang#21272, #36528"),
    "EY-FLAG-02": Fault(
        "no draft path",
        "the server does not start, or loads the target as its draft",
        "--speculative-draft-model-path",
        "sglang#36528"),
    "EY-FLAG-03": Fault(
        "the draft inherits the target's quantization",
        "bf16 weights are loaded as quantised ones",
        "--speculative-draft-model-quantization unquant",
        "server_args.py:3033-3048; sglang#28196"),
    "EY-FLAG-04": Fault(
        "--json-model-override-args reaches the draft too",
        "the draft is built with the target's override",
        "keep keys out that the draft's config has",
        "configs/model_config.py:513-517"),
    "EY-FLAG-05": Fault(
        "--speculative-num-draft-tokens is not steps + 1 in a chain",
        "the server overrides it",
        "leave it out, or set steps + 1",
        "arg_groups/speculative_hook.py:439-447"),
    "EY-FLAG-06": Fault(
        "--speculative-draft-window-size is not what was trained",
        "the draft sees less or more than in training",
        "serve with the window of the training; without one leave the flag out",
        "models/llama_eagle3.py:259-271, 355: the config's sliding_window is not read"),
    "EY-FLAG-07": Fault(
        "acceptance is simulated",
        "SGLANG_SIMULATE_ACC_LEN makes up the accept length",
        "unset it",
        "environ.py:265"),
    "EY-FLAG-08": Fault(
        "accept thresholds below 1",
        "wrong drafts are accepted: tau says nothing about the draft",
        "leave --speculative-accept-threshold-* at 1.0",
        "contract 5"),
    "EY-FLAG-09": Fault(
        "the class captures partial sums under tensor parallelism",
        "each rank's state is a part of the sum: tau falls only with tp > 1",
        "--enforce-disable-flashinfer-allreduce-fusion",
        "contract 1.4; sglang#28343"),
    "EY-FLAG-10": Fault(
        "tp does not divide the draft's heads",
        "AssertionError at start",
        "a tp that divides num_attention_heads",
        "models/llama.py:144-157"),
    "EY-FLAG-11": Fault(
        "--speculative-token-map is set",
        "ignored for EAGLE3 with a warning",
        "leave it out: the draft brings d2t",
        "speculative/eagle_worker_v2.py:311-318"),
    # Is it the target of the training?
    "EY-TARGET-01": Fault(
        "the tokenizer is not the one that the draft was trained with",
        "ids mean other words",
        "serve the target that was trained on",
        "contract 8.18"),
    "EY-TARGET-02": Fault(
        "the chat template is not the one that the draft was trained with",
        "fine on raw text, low on real traffic",
        "serve with the template of the traces",
        "SpecForge#296; speculators PR#346"),
    "EY-TARGET-03": Fault(
        "the target's config is not the one that the draft was trained with",
        "states differ (quantised, other rope, other depth)",
        "extract the states from the served target",
        "vllm#9534"),
    "EY-TARGET-04": Fault(
        "the target's weights are not the ones that the draft was trained with",
        "states differ: a fine-tuned target costs a third of tau",
        "extract and train on the served target",
        "vllm#34168"),
    # Data: states and answers.
    "EY-STATE-01": Fault(
        "rows of states and token ids do not match",
        "the draft learns states of other tokens",
        "extract again with prefix cache and chunked prefill off",
        "contract 4; sglang#8066"),
    "EY-STATE-02": Fault(
        "a chunk of the states is another boundary than the manifest says",
        "the draft learns inputs that the server will not give",
        "correct the capture (capture.offset, engine rule) and extract again",
        "contract 1; sglang#25454"),
    "EY-STATE-03": Fault(
        "the chunks are in another order than ascending",
        "fc learns them swapped",
        "concatenate ascending",
        "layers/logits_processor.py:671"),
    "EY-STATE-04": Fault(
        "`last` is not the post-norm state that the target's head reads",
        "the teacher is wrong: a floor under the loss",
        "store the state after the final norm, once",
        "speculators PR#313, PR#1038"),
    "EY-STATE-05": Fault(
        "the answers are not this target's own",
        "the draft learns another model's words: tau about 1.9 at best",
        "let the target regenerate the answers at the served temperature",
        "SpecForge#128"),
    "EY-STATE-06": Fault(
        "states are not finite",
        "one row poisons a batch",
        "check the target's weights and dtype",
        "SpecForge preprocessing"),
    "EY-STATE-07": Fault(
        "rows are shifted or corrupted",
        "training loss has a floor that no learning rate moves",
        "capture without prefix cache, chunking or left padding",
        "speculators#279; contract 4"),
    "EY-STATE-08": Fault(
        "the loss mask does not cover the response",
        "the first useful row is not taught, or template words are",
        "mask by the traces' own token ids",
        "SpecForge#885; EAGLE#286"),
    "EY-STATE-09": Fault(
        "a shard is not the one that the manifest lists",
        "states of two extractions are mixed",
        "bring it back (dvc checkout) or extract again",
        "design.md 3"),
    "EY-STATE-10": Fault(
        "the states are of another target than this one",
        "the draft is trained for a model that is not served",
        "extract from the served target",
        "vllm#34168"),
    "EY-STATE-11": Fault(
        "the states match no boundary of this target",
        "the target is in another basis (fine-tuned, quantised, rotated, another model); no offset explains it",
        "extract from the served target",
        "contract 8.13"),
    # What the two sides compute.
    "EY-FORWARD-01": Fault(
        "the served forward differs from the trainer's at the first step",
        "all of tau is lost",
        "compare names, rope, eps and dtype",
        "contract 3.3"),
    "EY-FORWARD-02": Fault(
        "the served forward differs from the trainer's at the recurrent step only",
        "alpha_1 fine, later ones collapse",
        "feed back the state before the final norm, at the next position",
        "contract 3.3; sglang#25015"),
    "EY-FORWARD-03": Fault(
        "what fc gives to the draft differs between trainer and server",
        "the fusion of the states is bypassed or fed with another width",
        "as many boundaries as fc has chunks, and more than one of the draft's own width",
        "models/llama_eagle3.py:213-221; contract 3.3"),
    "EY-TAU-01": Fault(
        "the draft accepts nothing offline although nothing else is wrong",
        "tau 1.00",
        "it is untrained, or was trained in another convention or on another target: run with --search",
        "contract 8.10"),
    "EY-TAU-02": Fault(
        "another convention accepts more than the served one",
        "the draft was trained in it",
        "serve that convention where the engine can, else retrain",
        "contract 8.4, 8.8, 8.10, 8.11"),
    # The plan.
    "EY-PLAN-01": Fault(
        "the disk does not hold the plan",
        "extraction would stop after hours",
        "fewer prompts, extract.dtype fp8, or a larger disk",
        "SpecForge#426; EAGLE#30"),
    "EY-PLAN-02": Fault(
        "the plan takes longer than exec.max_hours",
        "-",
        "fewer prompts, more workers or machines, or a higher limit",
        "design.md 3"),
}
# Said, but no reason to refuse a draft.
NOTES = ("EY-RULE-10", "EY-VOCAB-11", "EY-FLAG-05", "EY-FLAG-11", "EY-RULE-12", "EY-FILE-01")
