"""An image from the Dockerfile, by a builder's command line: docker-py's own builder is the old one, which knows no mounts."""
import os
import shutil
import subprocess
import sys

from stages.lib.refusal import Refusal
from tools.container import identity

# Certificates that the build may need to reach a package index; they are mounted for it and are in no layer.
BUNDLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
SYSTEM = "/etc/ssl/certs/ca-certificates.crt"
HANDED_ON = ("TORCH_INDEX", "PIP_INDEX_URL")  # build arguments where the environment has them; the locks' hashes hold for any index


def line(target, reference, base=None, builder="docker", network=None, environment=os.environ):
    """The builder's command line."""
    words = [builder, "bud" if os.path.basename(builder) == "buildah" else "build", "--file", "Dockerfile", "--target", target,
             "--tag", reference, "--build-arg", f"IDENTITY={identity.identity(target, base=base)}"]
    if base:
        words += ["--build-arg", f"{identity.BASE}={base}"]
    for name in HANDED_ON:
        if environment.get(name):
            words += ["--build-arg", f"{name}={environment[name]}"]
    if bundle := next((p for p in [*map(environment.get, BUNDLES), SYSTEM] if p and os.path.isfile(p)), None):
        words += ["--secret", f"id=ca_bundle,src={bundle}"]
    if network:
        words += ["--network", network]
    return [*words, "."]


def build(target, reference, base=None, builder="docker", network=None):
    """Build it here, its output handed on; the builder's exit code. Refusal without a builder that can."""
    if not shutil.which(builder):
        raise Refusal(f"there is no {builder} command to build with; install Docker (docker.io), or buildah and give --builder buildah")
    words = line(target, reference, base, builder, network)
    print(" ".join(words), flush=True)
    done = subprocess.Popen(words, env={**os.environ, "DOCKER_BUILDKIT": "1"}, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    for text in done.stderr:
        sys.stderr.write(text)
        said.append(text)
    if done.wait() and (cause := why("".join(said[-50:]))):
        raise Refusal(cause)
    return done.returncode


def why(said):
    """Meaning and remedy of a builder's last words; "" where they speak for themselves."""
    for sign, means in (
        ("buildx component is missing", "this docker command has no BuildKit; install docker-buildx-plugin, or name another command with "
                                        "--builder (Debian's docker.io has it built in)"),
        ("no space left on device", "the disk is full; free some with `docker builder prune` and `docker system prune`, and see "
                                    "`python -m tools.container doctor`"),
        ("Cannot connect to the Docker daemon", "no container engine answers; start Docker, or name its socket in DOCKER_HOST"),
        ("network bridge not found", "the engine has no network of its own for builds; give --network host"),
    ):
        if sign in said:
            return means
    return ""
