"""Only `make test-contract` has SGLang: elsewhere nothing of this folder is collected."""
import importlib.util
import sys

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_terminal_summary(terminalreporter):
    ran = getattr(sys.modules.get("tests.contract.sglang_real"), "RAN", {})
    if ran:
        terminalreporter.section("how each target class of the table was run")
        for name, how in sorted(ran.items(), key=lambda item: (item[1], item[0])):
            terminalreporter.line(f"{name:<42} {how}")
