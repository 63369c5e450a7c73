"""Parameters, restricted to what dvc.yaml declares for the running stage.

A key that a stage reads without declaring it is an AttributeError here, not a stale result later.
"""
import re
from types import SimpleNamespace

import yaml

from stages.lib import image
from stages.lib.files import digest_of, sha256

# Read by every stage and tracked by none: tests/test_exec.py shows that these leave the bytes alone.
UNTRACKED = ("exec",)


class Loader(yaml.SafeLoader):
    """SafeLoader that reads `1e-05` as a number.

    DVC writes YAML 1.2 through ruamel, where `1e-05` is a float; PyYAML follows YAML 1.1, where a float needs a
    dot, and would hand the learning rate over as a string (dvc#5971, dvc#8466).
    """


Loader.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789"))


def read_yaml(path):
    """The parsed file: plain dicts, lists, strings, numbers."""
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, Loader=Loader)


def declared(stage):
    """The part of params.yaml that dvc.yaml lists under `stage`, as nested dicts."""
    values, visible = read_yaml("params.yaml"), {}
    for key in listed(stage):
        if isinstance(key, dict):  # of another file: docker/images.yaml
            continue
        node, source = visible, values
        *parents, leaf = key.split(".")
        for part in parents:
            node, source = node.setdefault(part, {}), source[part]
        node[leaf] = source[leaf]
    return visible


def listed(stage):
    """What dvc.yaml lists under the stage's `params`."""
    return read_yaml("dvc.yaml")["stages"][stage].get("params", [])


def load(stage):
    """Params of `stage` as attributes, and `exec` beside them. Refusal outside the image that the stage runs in (image.py)."""
    values = read_yaml("params.yaml")
    if runs_in_image(stage):
        image.check(values["engine"]["image"], read_yaml(image.IMAGES)["images"])
    return _namespace({**declared(stage), **{key: values[key] for key in UNTRACKED}})


def runs_in_image(stage):
    return any(isinstance(key, dict) and image.IMAGES in key for key in listed(stage))


def code_key(stage):
    """Digest of the stage's Python files as dvc.yaml lists them and of its image: part of the key of everything kept in the state dir.

    Without it a changed draft.py would "resume" a finished run and hand out the old weights.
    """
    deps = read_yaml("dvc.yaml")["stages"][stage]["deps"]
    code = [[dep, sha256(dep)] for dep in sorted(deps) if dep.endswith(".py")]
    if runs_in_image(stage):
        code.append(read_yaml(image.IMAGES)["images"][read_yaml("params.yaml")["engine"]["image"]])
    return digest_of(code)


def _namespace(node):
    if isinstance(node, dict):
        return SimpleNamespace(**{key: _namespace(value) for key, value in node.items()})
    return node


def plain(node):
    """The reverse of the attribute view: dicts again, for digests and manifests."""
    if isinstance(node, SimpleNamespace):
        return {key: plain(value) for key, value in vars(node).items()}
    return node
