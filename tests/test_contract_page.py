"""docs/contract.md says what the tables say."""
import re

from stages.contract.faults import FAULTS
from tests.pipeline.scratch import ROOT
from tools import contract_page


def test_the_page_is_in_step_with_the_tables():
    assert (ROOT / contract_page.PAGE).read_text() == contract_page.page(), "run python -m tools.contract_page"


def test_every_fault_is_on_the_page_once():
    codes = re.findall(r"^\| `(EY-[A-Z]+-\d\d)`", contract_page.page(), re.M)
    assert codes == list(FAULTS)
