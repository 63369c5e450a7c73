"""Which of the project's Python files a stage can import: what its `deps` in dvc.yaml must list, no more and no less.

    python -m tools.closure            say what is missing or superfluous
    python -m tools.closure --write    correct dvc.yaml in place (data deps stay as they are)
"""
import argparse
import ast
import sys
from pathlib import Path

from ruamel.yaml import YAML

FIRST_PARTY = ("stages", "tools", "tests")


def imports(path):
    """Dotted names of every module that the file can import, lazy imports inside functions included."""
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path}: relative import; write the full name, so that a reader can search for it")
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def closure(path, root="."):
    """Sorted project files (posix, relative to root) reachable from `path` by imports, itself included."""
    seen, todo = set(), [path]
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for name in imports(Path(root) / current):
            file = f"{name.replace('.', '/')}.py"
            if name.split(".")[0] in FIRST_PARTY and (Path(root) / file).exists():
                todo.append(file)
    return sorted(seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="correct dvc.yaml")
    write = parser.parse_args().write
    yaml = YAML()
    yaml.width = 200
    pipeline = yaml.load(Path("dvc.yaml"))
    wrong = False
    for name, stage in pipeline["stages"].items():
        needed, listed = closure(f"stages/{name}.py"), [dep for dep in stage["deps"] if dep.endswith(".py")]
        if sorted(listed) != needed:
            wrong = True
            print(f"{name}: missing {sorted(set(needed) - set(listed))}, superfluous {sorted(set(listed) - set(needed))}")
            stage["deps"][:] = [dep for dep in stage["deps"] if not dep.endswith(".py")] + needed
    if write:
        yaml.dump(pipeline, Path("dvc.yaml"))
    sys.exit(wrong and not write)


if __name__ == "__main__":
    main()
