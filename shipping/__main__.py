"""`python -m shipping image`, `release` and `publish`; `make` calls them."""

from __future__ import annotations

import sys

import click

from breakeven import __version__
from shipping.image import Wish, make_image
from shipping.publishing import publish as publish_release
from shipping.release import make_release
from shipping.shipping_error import ShippingError


@click.group(help=__doc__)
def root() -> None:
    """The commands."""


@root.command(help="Build the operator's image into .image/.")
@click.option("--engine", default="", help="docker, podman or buildah (default: the first that works)")
@click.option(
    "--base",
    default="",
    help="image to build on; debian: made of Debian's packages (default: the Dockerfile's)",
)
@click.option("--twice", is_flag=True, help="build again from nothing and compare the digests")
def image(engine: str, base: str, *, twice: bool) -> None:
    """Builds the image and says what it is."""
    make_image(Wish(__version__, engine, base, twice), click.echo)


@root.command(help="Make the files of a release into dist/VERSION/.")
@click.option(
    "--tag",
    default="",
    help="such as v0.2.0 (default: the tag of this commit); one that does not exist is rehearsed",
)
def release(tag: str) -> None:
    """Makes a release and says where it is."""
    click.echo(f"files: {make_release(tag, click.echo)}")


@root.command(help="Try to publish that release here, then print the commands that publish it.")
@click.option("--tag", default="", help="as of release")
def publish(tag: str) -> None:
    """Tries it and prints the commands."""
    publish_release(tag, click.echo)


def main() -> int:
    """Runs a command; 1 and one line where it cannot be done."""
    try:
        root(prog_name="python -m shipping")
    except ShippingError as error:
        click.echo(f"breakeven: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
