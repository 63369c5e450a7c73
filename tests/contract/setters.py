"""The capture setters of any SGLang release, cut out of its source and run on stand-ins: no import of SGLang, no GPU.

A release is a folder with sglang/ in it, or a wheel. What is run is the function's own code; what is read from the text of the
layer loop is whether it looks at the list or at flags on the layers, and whether it captures behind the last layer.
"""
import __future__
import ast
import re
import types
import zipfile
from pathlib import Path

SETTER = "set_eagle3_layers_to_capture"
MODELS = "sglang/srt/models/"


class Release:
    def __init__(self, path):
        path = Path(path)
        if path.suffix == ".whl":
            archive = zipfile.ZipFile(path)
            sources = {name: archive.read(name) for name in archive.namelist() if name.startswith(MODELS) and name.endswith(".py")}
        else:
            sources = {f"{MODELS}{file.name}": file.read_bytes() for file in (path / MODELS).glob("*.py")}
        self.sources = {Path(name).stem: data.decode("utf-8-sig") for name, data in sources.items()}
        self.parsed = {}
        self.entries = {}  # registered class -> module
        for module, source in self.sources.items():
            for listed in re.findall(r"^EntryClass\s*=\s*(\[.*?\]|\w+)", source, re.M | re.S):
                self.entries |= dict.fromkeys(re.findall(r"\w+", listed), module)

    def module(self, name):
        """(classes, imported names -> (module, name)) of one model file."""
        if name not in self.parsed:
            tree = ast.parse(self.sources[name])
            imports = [node for node in ast.walk(tree)
                       if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.srt.models.")]
            imported = {alias.asname or alias.name: (node.module.rpartition(".")[2], alias.name)
                        for node in imports for alias in node.names}
            self.parsed[name] = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}, imported
        return self.parsed[name]

    def line(self, module, name):
        """(module, class node) of a class and then of its bases, as far as they are model files."""
        while module in self.sources:
            classes, imported = self.module(module)
            if name in classes:
                yield module, classes[name]
                for base in classes[name].bases:
                    if isinstance(base, ast.Name):
                        yield from self.line(module, base.id)
                return
            if name not in imported:
                return
            module, name = imported[name]

    def method(self, module, name, method):
        return next((node for _, owner in self.line(module, name) for node in owner.body
                     if isinstance(node, ast.FunctionDef) and node.name == method), None)

    def part(self, module, name, attribute):
        """(module, class) of what a class builds as self.model or self.language_model, or None."""
        for where, owner in self.line(module, name):
            start = next((node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
            if start is None:
                continue
            defaults = dict(zip([a.arg for a in start.args.args][::-1], start.args.defaults[::-1]))
            if isinstance(chosen := defaults.get("language_model_cls"), ast.Name):
                return where, chosen.id
            for node in ast.walk(start):
                if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                    continue
                built = node.value.func
                if ast.unparse(node.targets[0]) == f"self.{attribute}":
                    # self._init_model(...) or self.body_cls(...) are those of the most derived class
                    return (where, built.id) if isinstance(built, ast.Name) else self.named_by(module, name, built.attr)
        return None

    def named_by(self, module, name, attribute):
        for where, owner in self.line(module, name):
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name == attribute:
                    returned = next(n.value for n in ast.walk(node) if isinstance(n, ast.Return))
                    return where, returned.func.id
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == attribute:
                    value = node.value  # a class, or module.class
                    return (where, value.id) if isinstance(value, ast.Name) else (value.value.id, value.attr)
        return None


class StandIn(types.SimpleNamespace):
    """As much of a model as a setter touches. Its attributes `model` and `language_model` are stand-ins of the real parts' classes."""


def captured(release, name, ids, num_layers):
    """Boundaries that class `name` of this release marks and its loop reaches; None where it has no setter."""
    module = release.entries.get(name)
    if module is None or release.method(module, name, SETTER) is None:
        return None
    model = stand_in(release, module, name, num_layers)
    getattr(model, SETTER)(ids)
    while not hasattr(model, "loop"):
        model = model.model or model.language_model
    marked = []
    if re.search(r"\b(i|i \+ 1|layer_idx) in self\.layers_to_capture", model.loop):
        marked += model.layers_to_capture
    if "_is_layer_to_capture" in model.loop:
        marked += [b for b, layer in enumerate(model.layers) if getattr(layer, "_is_layer_to_capture", False)]
    behind_last = re.search(r"(num_layers|self\.end_layer|i \+ 1|self\.config\.num_hidden_layers) in self\.layers_to_capture", model.loop)
    return sorted({b for b in marked if 0 <= b < num_layers} | ({num_layers} & set(model.layers_to_capture) if behind_last else set()))


def stand_in(release, module, name, num_layers):
    one = StandIn(config=types.SimpleNamespace(num_hidden_layers=num_layers), pp_group=types.SimpleNamespace(is_last_rank=True),
                  model=None, language_model=None)
    one.config.text_config = one.config
    forward = release.method(module, name, "forward")
    if release.part(module, name, "model") is release.part(module, name, "language_model") is None:  # the layer loop itself
        one.loop, one.layers, one.layers_to_capture = ast.unparse(forward), [types.SimpleNamespace() for _ in range(num_layers)], []
    for attribute in ("model", "language_model"):
        if part := release.part(module, name, attribute):
            setattr(one, attribute, stand_in(release, *part, num_layers))
    if setter := release.method(module, name, SETTER):
        setattr(one, SETTER, types.MethodType(function(setter), one))
    return one


def function(node):
    """The function of its syntax tree; what it calls beside `self` is the pipeline group, whose last rank we are."""
    last = types.SimpleNamespace(is_last_rank=True)
    names = {"get_pp_group": lambda: last, "get_parallel": lambda: types.SimpleNamespace(pp_group=last)}
    code = compile(ast.Module([node], []), node.name, "exec", flags=__future__.annotations.compiler_flag)
    exec(code, names)
    return names[node.name]
