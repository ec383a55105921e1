"""The profile file: an exact round trip, and refusals that name the JSON path."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.fitting import fit_points
from breakeven.profile import Profile
from sweeps import closed, poisson


@pytest.fixture(scope="module")
def profile():
    rows = closed("none", 0, 1.2, 0.07, noise=0.01, output_tokens=200.0, model="m", gpu="A100")
    for k, e in ((1, 1.6), (7, 2.6)):
        rows += closed(
            "eagle3", k, 0.9 - 0.02 * k, 0.07 + 0.004 * k, noise=0.01, tokens_per_step=e, output_tokens=200.0
        )
    rows += poisson("none", 0, 1.2, 0.07, [13.0], first_row=50, achieved_rps=9.0)
    return fit_points([replace(row, p95_latency_s=1.5 * row.mean_latency_s) for row in rows])


def test_reading_gives_back_what_was_written(profile) -> None:
    assert Profile.from_json(profile.to_json()).document() == profile.document()


def test_a_profile_that_was_read_predicts_the_same(profile) -> None:
    again = Profile.from_json(profile.to_json())
    for arm in (Arm("eagle3", 7), Arm("eagle3", 3)):
        assert again.predict(arm, rps=4) == profile.predict(arm, rps=4)


def test_it_says_where_it_comes_from(profile) -> None:
    assert (profile.provenance["model"], profile.provenance["gpu"]) == ("m", "A100")
    assert profile.provenance["files"] == "sweep.csv"


def test_a_plan_and_a_prediction_import_nothing_of_a_fit(profile, tmp_path) -> None:
    path = tmp_path / "p.json"
    path.write_text(profile.to_json())
    program = (
        f"import sys; from breakeven.cli import root; root(['plan', {str(path)!r}, '--rps', '3'], standalone_mode=False);"
        f"from breakeven.profile import Profile; p = Profile.from_json(open({str(path)!r}).read());"
        "from breakeven.arm import Arm; p.predict(Arm('eagle3', 7), rps=4); p.compare(Arm('eagle3', 7), rps=4);"
        "print({'breakeven.fitting', 'breakeven.points', 'scipy', 'yaml', 'numpy.ma', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda d: d.update(schema="breakeven.dev/profile/v9"), "p.json"),
        (lambda d: d.pop("schema"), "p.json"),
        (lambda d: d.pop("arms"), "p.json: arms"),
        (lambda d: d["arms"][0].update(k="many"), "p.json: arms[0].k"),
        (lambda d: d["arms"][0].update(k=3), "p.json: arms[0]"),
        (lambda d: d["arms"][1]["quantiles"]["0.95"].update(c2_s=-1.0), "p.json: arms[1].quantiles.0.95"),
        (lambda d: d.update(confidence=2.0), "p.json: confidence"),
    ],
)
def test_an_edited_file_is_refused_with_the_path_of_the_fault(profile, edit, where) -> None:
    document = json.loads(profile.to_json())
    edit(document)
    with pytest.raises(InputError) as refused:
        Profile.from_json(json.dumps(document), "p.json")
    assert refused.value.where == where
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000])
def test_text_that_is_no_profile_is_refused(text) -> None:
    with pytest.raises(InputError):
        Profile.from_json(text, "p.json")
