"""Every flag and choice that a server is started with is one that SGLang's own parser takes: a misspelt one would show on a GPU alone."""
import argparse
import json
from pathlib import Path

import pytest

from tests.contract import sglang_real as real  # before transformers
from stages.engines import capability, live, sglang_capture, sglang_launch as launch
from stages.lib.params import read_yaml

ROOT = Path(__file__).parents[2]
PROFILES = {path.stem: (read_yaml(path).get("engine") or {}).get("flags") or {} for path in sorted((ROOT / "profiles").glob("*.yaml"))}
CARDS = capability.HOPPER + capability.BLACKWELL + capability.CONSUMER


class Wrong(Exception):
    """Why the parser does not take a line."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Wrong(message)


@pytest.fixture(scope="module")
def parser():
    # a shortened flag would be taken for the whole one here, and not by every release
    parser = Parser(allow_abbrev=False)
    real.ServerArgs.add_cli_args(parser)
    return parser


def parsed(parser, flags):
    return parser.parse_args(launch.command("/model", "bfloat16", flags, 30001)[3:])


@pytest.mark.parametrize("kind", ("mha", "other"))
@pytest.mark.parametrize("topk", (1, 4))
@pytest.mark.parametrize("tp", (1, 8))
@pytest.mark.parametrize("card", CARDS)
def test_the_lines_of_each_card(parser, card, tp, topk, kind):
    flags, _ = capability.needs(card, tp, topk, kind)
    arguments = parsed(parser, {**flags, "tp-size": tp})
    for name, value in flags.items():
        assert getattr(arguments, name.replace("-", "_")) == value


def test_every_line_of_the_table_is_reached(parser):
    reached = {line for card in CARDS for tp in (1, 8) for topk in (1, 4) for kind in ("mha", "other")
               for line in capability.lines(card, tp, topk, kind)}
    assert reached == set(capability.TABLE)


@pytest.mark.parametrize("name", sorted({line.name for line in capability.TABLE if line.name.startswith("SGLANG_")}))
def test_variables_of_the_table_are_sglangs(name):
    assert hasattr(real.of_sglang("environ", "Envs"), name)


@pytest.mark.parametrize("flags", [launch.speculation("/draft", 5), sglang_capture.flags(), live.EAGER, *PROFILES.values()],
                         ids=["speculation", "capture", "eager", *PROFILES])
def test_the_lines_of_the_stages_and_profiles(parser, flags):
    arguments = parsed(parser, flags)
    assert {name: getattr(arguments, name.replace("-", "_")) for name in flags} == flags


@pytest.mark.parametrize("name", sorted({*launch.OURS, *launch.FREE}))
def test_the_names_that_are_ours_or_free_exist(parser, name):
    assert any(option.startswith(f"--{name}") for option in parser._option_string_actions)  # SGLang's parser takes shortened ones: tp


@pytest.mark.parametrize("flags", [{"attention-backends": "flashinfer"}, {"attention-backend": "flashinfr"}, {"kv-cache-dtype": "bfloat"},
                                   {"mem-fraction-static": "much"}, {"disable-radix-cache": "yes"}, {"speculative-algo": "EAGLE3"}])
def test_a_planted_fault_is_found(parser, flags):
    with pytest.raises(Wrong):
        parsed(parser, flags)


@pytest.mark.parametrize("name", real.TARGETS)
def test_the_attention_of_each_target_class_is_what_sglang_says(name, tmp_path):
    """SGLang chooses a backend by it, and so does the table."""
    real.boot()
    config = real.TARGETS[name][1]()
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    theirs = real.ModelConfig(model_path=str(tmp_path))
    latent = theirs.attention_arch == real.of_sglang("configs.model_config", "AttentionArch").MLA
    assert capability.attention(about) == ("other" if latent or theirs.has_attention_sinks else "mha")
