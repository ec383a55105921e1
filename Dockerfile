# The operator's image; also the load driver's (`breakeven-operator trial`). The engine's image is the user's own.
#   make image                                  # builds it, unpacks it, says its size and digest (docs/install.md)
#   docker build --tag REGISTRY/breakeven:0.1.0 .
# BASE may be a mirror, or another Python 3.11 to 3.13 with venv; no shell is needed: --build-arg BASE=...
ARG BASE=docker.io/library/python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
COPY requirements/operator.lock requirements/
RUN ["python3", "-m", "venv", "/opt/breakeven"]
# --require-hashes: what the lock does not know is refused, whichever index it comes from. The secrets are for networks where an
# index or a certificate authority must be named (`make image` passes pip's settings on); no layer keeps them.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=authorities,target=/run/authorities.pem ["/opt/breakeven/bin/python", "-m", "pip", "install", "--no-compile", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", "requirements/operator.lock"]
COPY pyproject.toml README.md LICENSE ./
COPY shipping/slim_environment.py shipping/
COPY tuner tuner
COPY operator operator
RUN ["/opt/breakeven/bin/python", "-m", "pip", "install", "--no-compile", "--no-deps", "--no-build-isolation", "."]
RUN ["/opt/breakeven/bin/python", "-m", "pip", "check"]
# What only building needs goes again; then what no program of ours loads. Byte code stays: the root file system is read-only.
RUN ["/opt/breakeven/bin/python", "-m", "pip", "uninstall", "--yes", "hatchling", "pathspec", "pluggy", "tomlkit", "trove-classifiers", "setuptools", "pip"]
RUN ["/opt/breakeven/bin/python", "shipping/slim_environment.py"]

# The same base: the environment's interpreter is a link to this one.
FROM ${BASE}
LABEL org.opencontainers.image.title="breakeven" \
      org.opencontainers.image.description="Decides whether, how and until which load a vLLM fleet should use speculative decoding" \
      org.opencontainers.image.source="https://github.com/breakeven-dev/breakeven" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/breakeven /opt/breakeven
ENV PATH=/opt/breakeven/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that runAsNonRoot can be verified; the chart fixes no user, so that OpenShift may choose another.
USER 65532:65532
ENTRYPOINT ["breakeven-operator"]
CMD ["run"]
