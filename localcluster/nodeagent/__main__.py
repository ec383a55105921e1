"""`python -m localcluster.nodeagent`: the agent under its warden."""

from localcluster.nodeagent import warden


def _agent() -> int:
    # Imported in the child only: the warden stays small.
    from localcluster.nodeagent import commandline

    return commandline.main()


if __name__ == "__main__":
    warden.guard(_agent)
