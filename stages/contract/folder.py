"""A draft's folder as SGLang's loader would take it, opened without trusting it: headers and JSON only, never a pickle.

Which files the loader reads (model_loader/loader.py `_prepare_weights`, weight_utils.py `filter_duplicate_safetensors_files`;
the same in 0.5.8 to 0.5.23): `*.safetensors` in the folder itself, hidden ones excepted; of these only the files that
model.safetensors.index.json names, if there is one, but then every tensor in them; without an index all of them, save that
consolidated.safetensors is skipped where it lies beside model.safetensors alone. `*.bin`, and then `*.pt`, only where no
safetensors file lies.
"""
from stages.lib import cpu  # noqa: F401  before torch
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

from stages.lib.headers import Header, read_header, read_index, read_object
from stages.lib.refusal import Refusal

INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
DVC_CACHE = re.compile("/files/md5/[0-9a-f]{2}/[0-9a-f]{30}$")
FILE_LIMIT = 1000  # weight files in one folder


class Unreadable(Refusal):
    """A folder that cannot be judged. One line, whatever the names in the folder hold."""

    def __init__(self, message):
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
        super().__init__(line if len(line) < 1000 else f"{line[:700]} ... {line[-280:]}")


@dataclass
class Folder:
    path: Path
    config: dict  # config.json as found
    tensors: dict[str, Header]  # what the server's loader would read
    left_out: dict[str, Header]  # in files that the loader skips, because an index does not name them
    weight_files: list[str]  # *.safetensors that lie there, read or left out, in the order of loading
    pickles: list[str]  # named and never opened
    index_misses: list[str]  # tensors that the index places in a file that lacks them or is not there
    training: dict | None  # training.json as Eyrie's export writes it
    repeated: dict[str, list[str]] = field(default_factory=dict)  # tensor in several files that are read: the last one stays

    learned: tuple[list, str] | None = None  # boundaries that no record but the ids tell, and how: "given" or "assumed"

    @property
    def boundaries(self):
        """What the draft was trained on, as far as anything says (dialects.learn), else None."""
        recorded = (self.training or {}).get("boundaries")
        return recorded or (self.learned[0] if self.learned else None)

    def read(self, name, framework="pt"):
        """One tensor in its stored dtype (torch, or numpy with framework "np"); costs the memory of that tensor, whatever the file's size.

        KeyError for a name that is neither in `tensors` nor in `left_out`; Unreadable if the file has changed since.
        """
        header = self.tensors.get(name) or self.left_out[name]
        try:
            with safe_open(_inside(self.path, header.file), framework) as file:
                return file.get_tensor(name)
        except (OSError, SafetensorError, Refusal) as error:
            raise Unreadable(f"{self.path / header.file} cannot be read any more: {error}") from None


def open_folder(path) -> Folder:
    """The folder, judged by its headers alone. Unreadable, in one line, for everything that cannot be judged."""
    try:
        return _open(Path(path))
    except Unreadable:
        raise
    except Refusal as refusal:
        raise Unreadable(str(refusal)) from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise Unreadable(f"{path} cannot be read: {error}") from None


def _open(path):
    if not path.is_dir():
        raise Unreadable(f"{path} is no folder; expected one with a draft's config.json and *.safetensors")
    names = sorted(os.listdir(path))
    if "config.json" not in names:
        raise Unreadable(f"{path} has no config.json; expected the folder that a server would be given")
    pickles = [name for name in names if name.endswith(PICKLES)]
    weights = [name for name in names if name.endswith(".safetensors") and not name.startswith(".")]
    if not weights:
        raise Unreadable(f"{path} has no *.safetensors{_only_pickles(pickles)}")
    if len(weights) > FILE_LIMIT:
        raise Unreadable(f"{path} has {len(weights)} *.safetensors; expected one draft's, at most {FILE_LIMIT}")
    config = read_object(_inside(path, "config.json"))
    training = _record(_inside(path, "training.json")) if "training.json" in names else None
    placed = read_index(_inside(path, INDEX)) if INDEX in names else None
    if placed is not None:
        read = set(placed.values())
    else:
        read = {"model.safetensors"} if weights == ["consolidated.safetensors", "model.safetensors"] else set(weights)
    if not read & set(weights):
        raise Unreadable(f"{path / INDEX} names none of the files that lie there ({', '.join(weights[:3])}): the server finds no weights")

    tensors, left_out, repeated, held = {}, {}, {}, {}
    for name in weights:
        held[name] = read_header(_inside(path, name))
        if name in read:
            for tensor in held[name].keys() & tensors.keys():
                repeated.setdefault(tensor, [tensors[tensor].file]).append(name)
            tensors |= held[name]
        else:
            left_out |= held[name]
    misses = sorted(tensor for tensor, name in (placed or {}).items() if tensor not in held.get(name, ()))
    return Folder(path, config, tensors, {n: h for n, h in left_out.items() if n not in tensors}, weights, pickles, misses,
                  training, repeated)


def _record(path):
    """training.json, which anybody may have written: Unreadable unless what is read of it has the kinds that export writes."""
    read = read_object(path)
    number = lambda value: type(value) in (int, float) and 0 < value < 1e30
    kinds = {
        "boundaries": lambda value: isinstance(value, list) and 0 < len(value) <= 64 and all(type(b) is int and b >= 0 for b in value),
        "target_files": lambda value: isinstance(value, dict) and all(isinstance(digest, str) for digest in value.values()),
        "rope_scaling": lambda value: isinstance(value, dict), "norm_output": lambda value: isinstance(value, bool),
        "sliding_window": lambda value: type(value) is int, "rope_theta": number, "rms_norm_eps": number,
        "target": lambda value: isinstance(value, str), "vocabulary": lambda value: isinstance(value, str)}
    for key, right in kinds.items():
        if read.get(key) is not None and not right(read[key]):
            raise Unreadable(f"{path} has the {key} {read[key]!r:.60}; expected what export writes, or no training.json")
    return {key: value for key, value in read.items() if value is not None}


def _inside(path, name):
    """The file `name` of the folder; Unreadable for a link that leads out of it.

    A downloaded folder must not be able to name other files of this machine. Links into two stores that hold nothing but
    content by its hash are taken: the hub's (models--x/snapshots/<revision>/NAME -> models--x/blobs/<hash>) and DVC's.
    """
    home, real = os.path.realpath(path), os.path.realpath(path / name)
    if (path / name).is_symlink() and os.path.dirname(real) != home:
        snapshots = os.path.dirname(home)
        blobs = os.path.realpath(os.path.join(os.path.dirname(snapshots), "blobs"))
        if not (os.path.basename(snapshots) == "snapshots" and os.path.dirname(real) == blobs or DVC_CACHE.search(real)):
            raise Unreadable(f"{path / name} links to {real}, outside the folder; put the file itself there")
    return path / name


def _only_pickles(names):
    if not names:
        return "; expected a draft's weights"
    return (f", only pickles ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}), which run code when they are opened; convert "
            "them in a sandbox without network or secrets: safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
            "\"model.safetensors\")")
