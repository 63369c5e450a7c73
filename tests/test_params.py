import pytest

from stages.lib import params

PIPELINE = "stages:\n  one:\n    deps: [stages/one.py]\n    params:\n    - train.lr\n    - capture\n"
VALUES = "train:\n  lr: 1e-05\n  seed: 3\ncapture:\n  layer_ids:\n  - 1\n  - 2\n  offset: 1\nexec:\n  workers: 2\n"


@pytest.fixture
def project(in_tmp):
    (in_tmp / "dvc.yaml").write_text(PIPELINE)
    (in_tmp / "params.yaml").write_text(VALUES)
    return in_tmp


@pytest.mark.parametrize("text, value", [("1e-05", 1e-5), ("1e-4", 1e-4), ("5E3", 5e3), ("-2e+1", -20.0), ("1.0e-4", 1e-4)])
def test_numbers_that_dvc_writes_are_read_as_numbers(tmp_path, text, value):
    (tmp_path / "p.yaml").write_text(f"lr: {text}\n")
    read = params.read_yaml(tmp_path / "p.yaml")["lr"]
    assert read == value and isinstance(read, float)


@pytest.mark.parametrize("text", ["1e", "e5", "0x1f-e", "bcc81830d10c", "1e5f", "v1e-05"])
def test_words_that_look_almost_like_numbers_stay_words(tmp_path, text):
    (tmp_path / "p.yaml").write_text(f"name: {text}\n")
    assert params.read_yaml(tmp_path / "p.yaml")["name"] == text


def test_what_dvc_itself_writes_for_a_small_learning_rate_comes_back(tmp_path):
    from ruamel.yaml import YAML  # the writer inside `dvc exp run -S`
    path = tmp_path / "p.yaml"
    YAML().dump({"lr": 0.00001}, path)
    assert "1e-05" in path.read_text() and params.read_yaml(path)["lr"] == 1e-5


def test_a_stage_sees_what_it_declares_and_exec(project):
    p = params.load("one")
    assert p.train.lr == 1e-5 and p.capture.layer_ids == [1, 2] and p.exec.workers == 2


def test_an_undeclared_param_is_an_attribute_error(project):
    with pytest.raises(AttributeError, match="seed"):
        _ = params.load("one").train.seed


def test_code_key_follows_the_bytes_of_the_listed_files(project):
    (project / "stages").mkdir()
    (project / "stages" / "one.py").write_text("x = 1\n")
    before = params.code_key("one")
    (project / "stages" / "one.py").write_text("x = 2\n")
    assert params.code_key("one") != before


def test_yaml_that_names_python_objects_is_refused(tmp_path):
    (tmp_path / "p.yaml").write_text("x: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(Exception, match="could not determine a constructor"):
        params.read_yaml(tmp_path / "p.yaml")
