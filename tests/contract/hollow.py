"""Hollow packages, in the place of what SGLang imports and no test on a CPU calls.

torchvision (its default build belongs to CUDA's torch), triton and tvm_ffi (GPU kernels), vllm (a rotary kernel that SGLang imports
off CUDA). A hollow attribute answers to anything and computes nothing, so a result cannot come from one unnoticed.
"""
import importlib.abc
import importlib.machinery
import os
import sys
import types

HOLLOW = ("torchvision", "triton", "tvm_ffi", "vllm")


class Hollow:
    def __init__(self, *_, **__):
        pass

    def __call__(self, *args, **kwargs):  # a decorator gives its function back
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else Hollow()

    def __getattr__(self, name):
        if name.startswith("__") or name == "active":  # triton.runtime.driver.active: SGLang asks whether there is a device
            raise AttributeError(name)
        return Hollow()

    def __getitem__(self, _):
        return Hollow()

    def __or__(self, _):
        return self

    __ror__ = __or__


class HollowModule(types.ModuleType):
    __version__ = "0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Hollow()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in HOLLOW else None

    def create_module(self, spec):
        return HollowModule(spec.name)

    def exec_module(self, module):
        pass


def install():
    """Before the first import of SGLang in this process."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # torch.compile as a decorator leaves the function alone; a compiler would ask for triton
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch._dynamo  # noqa: F401  torch looks for triton here: before it is hollow
    import torch._inductor.utils  # noqa: F401
    sys.meta_path.insert(0, Finder())
