"""A release is published as a person would publish it, to a registry, a git server's folder and web servers of this machine.

The programs are real: crane, cosign, distribution's registry, Helm and krew. They take a quarter of an hour to build: a release builds them, and no landing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.small_release import VERSION, release_of, stamped_chart, summed
from localcluster.binaries import ensure, present
from operatorcluster.optional import asked
from shipping.commands import checked
from shipping.plugin_archives import this_platform
from shipping.publishing import PROGRAMS, rehearse
from shipping.release import checksums
from shipping.shipping_error import ShippingError

pytestmark = pytest.mark.skipif(
    not asked(["cosign"]) and not present(PROGRAMS),
    reason="programs that publish were not built, which takes a quarter of an hour: BREAKEVEN_CONTROLLERS=build builds them",
)


@pytest.fixture(scope="module")
def programs():
    return ensure(PROGRAMS)


@pytest.fixture
def release(tmp_path, programs):
    made = release_of(tmp_path)
    stamped_chart(tmp_path / "breakeven")
    checked([str(programs["helm"]), "package", str(tmp_path / "breakeven"), f"--destination={made.files}"])
    summed(made)
    return made


def test_image_files_chart_and_plugin_come_back_from_where_they_were_published(release, programs, tmp_path):
    said: list[str] = []
    before = checksums(release.files)
    (tmp_path / "rehearsal").mkdir()
    rehearse(release, programs, tmp_path / "rehearsal", said.append)
    assert [line.split(":")[1].strip() for line in said] == ["image", "files", "chart and site", "plugin"]
    assert f"breakeven-{VERSION}.tgz" in said[2]
    assert said[3].endswith(f"kubectl breakeven, version {VERSION}")
    # No signature of a key that is gone, and no index of a server that is gone, is left where a person publishes from.
    assert checksums(release.files) == before
    assert [one.name for one in release.site.iterdir()] == ["index.html"]


@pytest.mark.parametrize(
    ("what", "words"),
    [("image", "cosign sign .*404 Not Found"), ("plugin", "krew install"), ("chart", "sha256sum")],
)
def test_what_does_not_come_back_as_it_was_ends_the_rehearsal(release, programs, tmp_path, what, words):
    (tmp_path / "rehearsal").mkdir()
    if what == "image":
        release = replace(release, digest=f"sha256:{'0' * 64}")
    elif what == "plugin":
        archive = f"kubectl-breakeven_v{VERSION}_{'_'.join(this_platform())}.tar.gz"
        (release.files / archive).write_bytes(b"another one")
        summed(release)
    else:
        (release.files / f"breakeven-{VERSION}.tgz").write_bytes(b"another one")
    with pytest.raises(ShippingError, match=words):
        rehearse(release, programs, tmp_path / "rehearsal", lambda _: None)
