"""Options that name the engine a command sends requests to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import several
from breakeven.cli.parameters import InputFile
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.load_driver.client import Endpoint

url_option = click.option("--url", required=True, help="The engine, http://host:port.")
model_option = click.option("--model", help="Served model name.  [default: the engine's first]")
access_options = several(
    click.option(
        "--api-key-env", metavar="NAME", help="Environment variable that holds the engine's API key."
    ),
    click.option("--ca", type=InputFile(), help="CA certificate for https."),
)


def endpoint_of(options: Mapping[str, Any], url: str) -> Endpoint:
    """The engine at an address, with the model and the access that the options name.

    Raises:
        click.UsageError: its address is none.
        InputError: the variable with the key is not set.
    """
    from breakeven.load_driver.client import Endpoint

    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"{url or 'no address'}: expected http://host:port or https://host:port")
    name, key = options["api_key_env"], None
    if name is not None:
        key = os.environ.get(name)
        if not key:
            raise InputError(
                f"--api-key-env {name}", "not set or empty", "the engine's API key in that variable"
            )
    return Endpoint(url, options["model"], key, options["ca"])
