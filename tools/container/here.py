"""What of this machine and this checkout a container needs: the Job for tools/container/plan.py."""
import configparser
import os
import subprocess
from pathlib import Path

from stages.lib.image import NONE
from stages.lib.params import read_yaml
from stages.lib.refusal import Refusal
from stages.lib.target import cache_dir
from tools.container import identity
from tools.container.plan import Job, inside

# NCCL and torch's loaders share memory between processes; the engine's own default is 64 MB
SHM = {"cpu": "1g", "gpu": "16g"}
# pinned host memory, deep stacks of compilers; not where the engine itself may not raise a limit (--ulimit none)
ULIMITS = {"cpu": (), "gpu": ("memlock=-1", "stack=67108864")}


def target_of(named=None):
    """cpu or gpu: as named, else what engine.image says; the cpu image where a profile names none."""
    chosen = named or read_yaml("params.yaml")["engine"]["image"]
    return "cpu" if chosen == NONE else chosen


def reference(target, named=None):
    """The image's name in the engine."""
    return named or os.environ.get(f"EYRIE_IMAGE_{target.upper()}") or f"eyrie:{target}"


def job(command, options, terminal=False):
    """The Job of a command in this workspace. options: of __main__.py. Creates the folders that are kept between containers."""
    workspace = os.getcwd()
    if not Path("dvc.yaml").exists():
        raise Refusal(f"no dvc.yaml in {workspace}; run it from the root of the project")
    if os.stat(workspace).st_uid != os.getuid():
        raise Refusal(f"{workspace} belongs to user {os.stat(workspace).st_uid} and you are {os.getuid()}: git and DVC refuse a repository "
                      f"of another user; run it as its owner, or take it over with `chown -R {os.getuid()}:{os.getgid()} {workspace}`")
    target, params = target_of(options.image), read_yaml("params.yaml")
    base = cache_dir()
    own = base / "container" / f"{target}-{identity.declared()[target]}"
    own.mkdir(parents=True, exist_ok=True)
    site = Path(os.environ.get("DVC_SITE_CACHE_DIR") or base / "container" / "dvc").absolute()
    site.mkdir(parents=True, exist_ok=True)
    writable, readable, environment = [str(base), str(site)], [], {"EYRIE_CACHE": str(base), "DVC_SITE_CACHE_DIR": str(site)}
    writable += links(workspace) + git_folders()
    if cache := dvc_cache():
        Path(cache).mkdir(parents=True, exist_ok=True)
        writable.append(cache)
    if params["target"]["source"] == "hub":
        hub = hub_cache()
        Path(hub).mkdir(parents=True, exist_ok=True)
        writable.append(hub)
        environment["HF_HUB_CACHE"] = hub
    elif params["target"]["source"] == "folder":
        readable.append(os.path.realpath(params["target"]["name"]))
    if os.path.isabs(start := str(params["train"]["init"])):
        readable.append(start)
    environment |= git_identity() | {name: os.environ[name] for name in options.env if name in os.environ}
    readable += [os.path.abspath(path) for path in options.mount]
    return Job(image=reference(target, options.reference), command=tuple(command), workspace=workspace, cache=str(own),
               user=(os.getuid(), os.getgid(), *sorted(set(os.getgroups()) - {os.getgid()})),
               writable=tuple(exist(writable)), readable=tuple(exist(readable)), gpus=gpus(options.gpus, target), network=options.network,
               shm=options.shm or SHM[target], memory=options.memory, environment=environment, terminal=terminal,
               ulimits=tuple(u for u in options.ulimit if u != "none") if options.ulimit else ULIMITS[target])


def gpus(named, target):
    """As Job.gpus: what --gpus says (all, none, or numbers), else all that CUDA_VISIBLE_DEVICES leaves, for the gpu image."""
    if named is None:
        named = os.environ.get("CUDA_VISIBLE_DEVICES", "all") if target == "gpu" else "none"
    if named in ("none", ""):
        return None
    return () if named == "all" else tuple(name.strip() for name in named.split(",") if name.strip())


def links(workspace):
    """Where links of the workspace lead that hold what stages write, when it is outside: data on a larger disk, say."""
    places = [Path(p) for p in (".eyrie", ".dvc/cache", ".dvc/tmp", "data", "metrics")] + sorted(Path("data").glob("*"))
    return [real for p in places if p.is_symlink() and os.path.isdir(real := os.path.realpath(p)) and not inside(real, workspace)]


def dvc_cache():
    """cache.dir of DVC's configuration, absolute; None where it is DVC's own choice, inside the workspace. Read here, because the import of
    DVC takes longer than the start of a container."""
    found = None
    for path in (Path("/etc/xdg/dvc/config"), Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "dvc/config",
                 Path(".dvc/config"), Path(".dvc/config.local")):  # later ones win, as in DVC
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.read(path)
        if said := parser.get("cache", "dir", fallback="").strip().strip("'\""):
            found = os.path.abspath(path.parent / os.path.expanduser(said))  # relative to the file that names it
    return found


def git_folders():
    """The repository's own folder: elsewhere for a worktree."""
    said = git("rev-parse", "--path-format=absolute", "--git-common-dir")
    return [said] if said else []


def git_identity():
    """The user's name for commits (`dvc exp run` makes some): the container has another home, hence no .gitconfig."""
    name, mail = git("config", "user.name"), git("config", "user.email")
    if not (name and mail):
        return {}
    return {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", name), ("EMAIL", mail))}


def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True).stdout.strip()


def hub_cache():
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.abspath(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")))


def exist(paths):
    """Refusal for a path that is not there: the engine would make an empty folder of it, owned by root."""
    for path in paths:
        if not os.path.exists(path):
            raise Refusal(f"{path} is not there, and the container needs it mounted; make it, or correct the param or option that names it")
    return paths
