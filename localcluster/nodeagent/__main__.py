"""`python -m localcluster.nodeagent`: the agent under its warden."""

from localcluster.nodeagent import warden


def _agent() -> int:
    from localcluster.nodeagent import commandline  # noqa: PLC0415 - in the child only: the warden stays small

    return commandline.main()


if __name__ == "__main__":
    warden.guard(_agent)
