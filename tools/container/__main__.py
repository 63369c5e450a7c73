"""The project's containers: its images built, its commands run in them.

    python -m tools.container run [options] -- dvc repro       a command in the image that engine.image names (none: the cpu image)
    python -m tools.container shell                             a shell there
    python -m tools.container serve [--port 30000]              the SGLang server with data/export, until ^C
    python -m tools.container build cpu|gpu                     an image, from the Dockerfile
    python -m tools.container doctor                            what this machine has and lacks
    python -m tools.container identity [--write]                docker/images.yaml against the Dockerfile

The engine is Docker's, or what DOCKER_HOST names. A container sees the workspace, its caches and what params.yaml names, under their own
paths; it runs as you, without a network unless --network says otherwise, and is gone afterwards. The exit code is the command's.
"""
import argparse
import os
import sys

from stages.lib.image import IMAGES
from stages.lib.refusal import Refusal, run
from tools.container import build, doctor, engine, here, identity
from tools.container.plan import plan


def main():
    own, command = split(sys.argv[1:])
    options = parser().parse_args(own)
    if command and options.do != "run":
        raise Refusal(f"{options.do} takes no command after `--`; for commands there is `run`")
    do = {"run": run_command, "shell": shell, "serve": serve, "build": build_image, "doctor": doctor_here, "identity": identities}
    with engine.said_plainly():
        sys.exit(do[options.do](options, command))


def split(words):
    """(our own words, the words after `--`)."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1:]


def parser():
    top = argparse.ArgumentParser(prog="python -m tools.container", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = top.add_subparsers(dest="do", required=True)
    image = argparse.ArgumentParser(add_help=False)
    image.add_argument("--image", choices=identity.TARGETS, help="instead of what engine.image says")
    image.add_argument("--reference", help="the image's name in the engine (eyrie:cpu, eyrie:gpu; EYRIE_IMAGE_CPU, EYRIE_IMAGE_GPU)")
    image.add_argument("--gpus", help="all, none, or numbers; default: all that CUDA_VISIBLE_DEVICES leaves, for the gpu image")
    image.add_argument("--shm", help="size of /dev/shm (cpu: 1g, gpu: 16g)")
    image.add_argument("--memory", help="limit, 64g for example; none by default")
    image.add_argument("--ulimit", action="append", default=[], metavar="NAME=SOFT[:HARD]",
                       help="instead of the gpu image's memlock=-1 and stack=67108864; `none` for none at all")
    image.add_argument("--mount", action="append", default=[], metavar="PATH", help="one more folder to read, under the same path")
    image.add_argument("--env", action="append", default=[], metavar="NAME", help="a variable to hand on")
    for name in ("run", "shell"):
        kind = kinds.add_parser(name, parents=[image])
        kind.add_argument("--network", default="none", help="none (default), or host where something is to be fetched or pushed")
        kind.add_argument("--profile", help="write profiles/PROFILE.yaml over params.yaml first, as make repro does")
    kind = kinds.add_parser("serve", parents=[image])
    kind.add_argument("--port", type=int, default=30000)
    kind.add_argument("--chain", type=int, default=5, help="draft tokens per verify pass")
    kind.add_argument("--minutes", type=float, default=20, help="how long the start may take: a first one compiles kernels")
    kind.set_defaults(network="host", profile=None)
    kind = kinds.add_parser("build")
    kind.add_argument("target", nargs="?", choices=identity.TARGETS, default="cpu")
    kind.add_argument("--base", help="a base image in the place of the Dockerfile's, from a mirror for example")
    kind.add_argument("--reference", help="the image's name in the engine")
    kind.add_argument("--builder", default="docker", help="docker (with BuildKit), buildah, or the path of one")
    kind.add_argument("--network", help="of the build's own steps, host for example")
    kinds.add_parser("doctor", parents=[image]).set_defaults(network="none")
    kind = kinds.add_parser("identity")
    kind.add_argument("--write", action="store_true", help=f"correct {IMAGES}")
    kind.add_argument("--base", help="as of `build`")
    return top


def run_command(options, command, **more):
    """A command in a container of this workspace; its exit code."""
    if not command:
        raise Refusal("there is nothing to run; give a command after `--`, as in `python -m tools.container run -- dvc repro`")
    if options.profile:
        from tools import repro
        with repro.only_one():
            repro.apply_profile(options.profile)
    target = here.target_of(options.image)
    job = here.job(command, options, terminal="talk" in more)
    client = engine.connect()
    engine.ready(client, job, target, identity.declared()[target])
    with engine.only_one(client, job.workspace):
        return engine.run(client, plan(job), **more)


def shell(options, command):
    from tools.container import terminal
    with terminal.raw() as talk:
        return run_command(options, ["bash"], talk=talk)


def serve(options, command):
    options.image = options.image or "gpu"
    line = ["python", "-m", "tools.serve", "--port", str(options.port), "--chain", str(options.chain)]
    return run_command(options, line, meanwhile=engine.until_healthy(f"http://127.0.0.1:{options.port}", options.minutes))


def build_image(options, command):
    return build.build(options.target, here.reference(options.target, options.reference), options.base, options.builder, options.network)


def doctor_here(options, command):
    return doctor.report(options)


def identities(options, command):
    if options.write:
        identity.write(base=options.base)
    for name, declared, computed in (wrong := identity.differences(base=options.base)):
        print(f"{name}: {IMAGES} says {declared}, the Dockerfile gives {computed}; correct it with "
              "`python -m tools.container identity --write`")
    for name, value in identity.declared().items():
        print(f"{name:<5} {value or '-'}")
    return bool(wrong)


if __name__ == "__main__":
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    run(main)
