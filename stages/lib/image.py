"""In which container image a stage runs, and that it does.

docker/images.yaml holds one identity per image (tools/container/identity.py); stages declare the one that `engine.image` names, so that
a new image makes their results stale. A result computed elsewhere would lie in DVC's run cache under that image's name, hence the check.
"""
from pathlib import Path

from stages.lib.refusal import Refusal

IMAGES = "docker/images.yaml"
MARK = Path("/etc/eyrie-image")  # written by the Dockerfile: `<target> <identity>`
NONE = "none"  # the environment in which the stage was started, whatever that is


def check(name, images, mark=MARK):
    """Refusal unless this process runs in the image `name` of `images`, {name: identity}."""
    if name not in images:
        raise Refusal(f"engine.image is {name!r}; expected one of {', '.join(images)}")
    if name == NONE:
        return
    start = f"start it there with `make repro IN=container` or `python -m tools.container run -- dvc repro` (engine.image is {name})"
    if not mark.exists():
        raise Refusal(f"this stage runs in the {name} image alone, and this is no container of it; {start}")
    here, _, identity = mark.read_text(encoding="utf-8").strip().partition(" ")
    if here != name:
        raise Refusal(f"this stage runs in the {name} image, and this is a container of the {here} image; {start}")
    if identity != images[name]:
        raise Refusal(f"this container's {name} image is {identity}, but {IMAGES} declares {images[name]}; build the declared one with "
                      f"`python -m tools.container build {name}`, or check out the commit that this image belongs to")
