"""Which image a target of the Dockerfile is, known before it is built: a digest of everything that decides its content.

It covers the base image, the instructions of the target's build stages, and the bytes of each file that they copy. What it leaves out:
comments and blank lines, build stages that the target does not use, and the project's code, which is mounted and never copied. The
digest of a built image would not do: apt's layers differ in bytes from build to build, so that it would name a build and not a content.
"""
import hashlib
import json
import re
from pathlib import Path

from stages.lib import files
from stages.lib.image import IMAGES
from stages.lib.params import read_yaml
from stages.lib.refusal import Refusal

TARGETS = ("cpu", "gpu")
DIGITS = 16
BASE = "BASE_IMAGE"  # the argument that names the base image


def identity(target, root=".", base=None):
    """16 hex digits for `target` of the Dockerfile in `root`. base: an image in the place of the Dockerfile's own.

    A base with a digest counts by that alone: a mirror that hands out the same image changes nothing.
    """
    root = Path(root)
    given, stages = parse(read(root / "Dockerfile"))
    if target not in stages:
        raise Refusal(f"the Dockerfile has no target {target}; it has {', '.join(stages)}")
    if base:
        given[BASE] = f"ARG {BASE}={base}"
    lines = closure(target, stages)
    named = [re.sub(r"=\S*@sha256:", "=@sha256:", line) for name, line in given.items() if mentions(lines, name)]
    copied = sorted({file for line in lines for source in sources(line) for file in matches(root, source)})
    parts = [named, lines, [[file.relative_to(root).as_posix(), files.sha256(file)] for file in copied]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:DIGITS]


def read(path):
    """The instructions of a Dockerfile, each in one line with single spaces; comments and blank lines are gone."""
    if not Path(path).exists():
        raise Refusal(f"there is no {path}; run it from the root of the project")
    instructions, open_ = [], False
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):  # inside a continued instruction too, as the builders read it
            continue
        goes_on = line.rstrip().endswith("\\")
        words = " ".join(line.rstrip().removesuffix("\\").split())
        instructions[-1:] = [f"{instructions[-1]} {words}".strip()] if open_ else [*instructions[-1:], words]
        open_ = goes_on
    return instructions


def parse(instructions):
    """({global argument: its line}, {build stage: its lines, FROM first})."""
    given, stages, current = {}, {}, None
    for line in instructions:
        word, _, rest = line.partition(" ")
        if word.upper() == "FROM":
            name = re.search(r"\bas (\S+)$", rest, re.I)
            current = stages.setdefault(name[1] if name else str(len(stages)), [])
        if current is None:
            given[re.split(r"[= ]", rest)[0]] = line
        else:
            current.append(line)
    return given, stages


def closure(target, stages):
    """Lines of the target's build stage and of every stage that it starts from, copies from or mounts."""
    lines = []
    wanted, seen = [target], set()
    while wanted:
        name = wanted.pop()
        if name in seen or name not in stages:
            continue
        seen.add(name)
        lines += stages[name]
        for line in stages[name]:
            wanted += re.findall(r"^FROM (?:--\S+ )*(\S+)", line, re.I) + re.findall(r"(?:--|,)from=([^\s,]+)", line)
    return lines


def mentions(lines, name):
    return any(re.search(rf"\$\{{?{name}\b|^ARG {name}$", line) for line in lines)


def sources(line):
    """What an instruction takes from the build context: of COPY and ADD, and of RUN's bind mounts."""
    word, *words = line.split()
    if word.upper() in ("COPY", "ADD"):
        if any(w.startswith("--from=") for w in words):
            return []
        named = [w for w in words if not w.startswith("--")]
        if named[0].startswith("["):
            raise Refusal(f"`{line}` is in the JSON form, which the image's identity is not computed from; write it without brackets")
        return named[:-1]
    mounts = [dict(part.partition("=")[::2] for part in w.removeprefix("--mount=").split(",")) for w in words if w.startswith("--mount=")]
    return [m.get("source", m.get("src", ".")) for m in mounts if m.get("type", "bind") == "bind" and "from" not in m]


def matches(root, source):
    """Files of the build context that a source names; of a folder, all below it."""
    found = [path for match in sorted(root.glob(source.lstrip("/"))) for path in ([match] if match.is_file() else match.rglob("*"))
             if path.is_file()]
    if not found:
        raise Refusal(f"the Dockerfile copies {source}, which is not there; is the name right?")
    return found


def declared(root="."):
    """{target: identity} of docker/images.yaml."""
    return read_yaml(Path(root) / IMAGES)["images"]


def differences(root=".", base=None):
    """[(target, declared, computed)] where docker/images.yaml is not what the Dockerfile gives."""
    says = declared(root)
    return [(name, says.get(name), now) for name in TARGETS if (now := identity(name, root, base)) != says.get(name)]


def write(root=".", base=None):
    """Put the computed identities into docker/images.yaml; comments stay."""
    from ruamel.yaml import YAML  # here: it is slow to import, and starting a container writes nothing
    path, yaml = Path(root) / IMAGES, YAML()
    document = yaml.load(path)
    document["images"].update({name: identity(name, root, base) for name in TARGETS})
    with open(path, "w", encoding="utf-8") as file:
        yaml.dump(document, file)
