"""The costs document: defaults, choice of engine, refusals."""

from __future__ import annotations

import json

import pytest

from breakeven.errors import InputError
from breakeven_sim.engine import cost_docs
from breakeven_sim.engine.costs import CostDocument, default_document, json_schema, load_costs, parse_costs
from breakeven_sim.engine.serve_arguments import parse


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, int | float):
        yield ".".join(path)


def test_every_default_number_names_its_source():
    for name, costs in default_document().gpus.items():
        written = costs.model_dump(exclude_unset=True, exclude={"sources", "description"})
        prefixes = tuple(costs.sources)
        unsourced = [leaf for leaf in leaves(written) if not leaf.startswith(prefixes)]
        assert not unsourced, name
        paths = set(leaves(costs.model_dump()))
        unused = [p for p in prefixes if not any(leaf == p or leaf.startswith(f"{p}.") for leaf in paths)]
        assert not unused, name


def test_defaults_are_an_a100_and_an_h100_that_start():
    document = default_document()
    assert set(document.gpus) == {"NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"}
    for costs in document.gpus.values():
        for method in (None, *costs.methods.values()):
            assert costs.kv_pool_tokens(0.92, method) > 10 * costs.limits.max_model_len


def test_the_gpu_class_chooses_the_engine():
    h100 = load_costs(environment={})
    a100 = load_costs(environment={"BREAKEVEN_SIM_GPU": "NVIDIA-A100-SXM4-80GB"})
    assert a100.step.base_s > h100.step.base_s
    assert load_costs(environment={"BREAKEVEN_SIM_GPU": "a100"}) == a100


def test_flag_before_variable_before_defaults(tmp_path, document):
    file = tmp_path / "engine.json"
    file.write_text(json.dumps(document(step__base_s=0.5)))
    inline = json.dumps(document(step__base_s=0.25))
    assert load_costs(str(file), {"BREAKEVEN_SIM_COSTS": inline}).step.base_s == 0.5
    assert load_costs(None, {"BREAKEVEN_SIM_COSTS": inline}).step.base_s == 0.25
    assert load_costs(None, {"BREAKEVEN_SIM_COSTS": ""}).step.base_s < 0.1


def test_one_file_serves_two_node_classes(document):
    text = json.dumps({"gpus": {"H100": document(step__base_s=0.1), "A100": document(step__base_s=0.2)}})
    assert parse_costs(text, "NVIDIA-A100-SXM4-80GB", "f").step.base_s == 0.2
    with pytest.raises(InputError, match=r"no entries fit GPU 'NVIDIA-L4'; expected one of: A100, H100"):
        parse_costs(text, "NVIDIA-L4", "f")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"step__base_s": 0}, "f: step.base_s: is 0; expected above 0"),
        (
            {"step__base_ms": 20},
            "f: step.base_ms: is not a field; expected a field that docs/engine-costs.md lists",
        ),
        (
            {"methods__eagle3__text__easy_rate": 1.5},
            "f: methods.eagle3.text.easy_rate: is 1.5; expected at most 1",
        ),
        ({"limits__max_num_seqs": "many"}, "f: limits.max_num_seqs: is 'many'; expected a whole number"),
    ],
)
def test_a_bad_number_gets_one_line_that_names_it(document, change, line):
    with pytest.raises(InputError) as refused:
        parse_costs(json.dumps(document(**change)), "", "f")
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", '{"gpus": {}}', '{"gpus": 3}', "{}"])
def test_what_is_no_document_gets_one_line(text):
    with pytest.raises(InputError) as refused:
        parse_costs(text, "H100", "f")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_costs(str(tmp_path / "absent.json"), {})
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_costs(str(tmp_path / "binary.json"), {})


def test_a_drafter_of_its_own_goes_before_its_method(document):
    costs = parse_costs(json.dumps(document()), "", "f")
    richer = document()
    richer["methods"]["eagle3:org/big"] = {**richer["methods"]["eagle3"], "kv_pool_share": 0.3}
    both = parse_costs(json.dumps(richer), "", "f")
    assert both.method("eagle3", "org/big").kv_pool_share == 0.3
    assert both.method("eagle3", "org/small") == costs.method("eagle3")
    with pytest.raises(InputError, match="no entry for method suffix; expected one of: eagle3, ngram"):
        costs.method("suffix")


def test_the_drafter_takes_its_share_of_the_pool(document):
    costs = parse_costs(json.dumps(document()), "", "f")
    assert costs.kv_pool_tokens(1.0, None) == 2**20
    assert costs.kv_pool_tokens(1.0, costs.methods["eagle3"]) == int(0.9 * 2**20)
    assert costs.kv_pool_tokens(0.75, None) == 2**19


def test_the_shipped_demo_costs_are_valid_for_both_gpus(request):
    text = (request.config.rootpath / "examples/engine-costs/demo.json").read_text()
    document = CostDocument.model_validate_json(text)
    assert {"eagle3", "ngram"} <= set(document.for_gpu("NVIDIA-A100-SXM4-80GB", "f").methods)


def test_the_schema_describes_every_field_with_its_unit():
    for name, model in json_schema()["$defs"].items():
        for field, about in model["properties"].items():
            assert about.get("description"), f"{name}.{field}"


def test_the_page_about_costs_is_current():
    assert cost_docs.main(["--check"]) == 0, "python -m breakeven_sim.engine.cost_docs --write"


def test_the_schema_can_be_printed(capsys):
    with pytest.raises(SystemExit) as exited:
        parse(["--sim-costs-schema"])
    assert exited.value.code == 0
    assert json.loads(capsys.readouterr().out) == json_schema()
