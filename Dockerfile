# The operator's image; also the load driver's (`breakeven-operator trial`). The engine's image is the user's own.
#   docker build --tag REGISTRY/breakeven:0.1.0 .
# BASE may be a mirror, or the same image by digest: --build-arg BASE=python:3.12-slim@sha256:...
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements/operator.lock requirements/
# --require-hashes: what the lock does not know is refused, whichever index it comes from.
RUN python -m venv /opt/breakeven \
 && /opt/breakeven/bin/pip install --no-deps --require-hashes --requirement requirements/operator.lock
COPY pyproject.toml README.md LICENSE ./
COPY tuner tuner
COPY operator operator
# What only building needs goes again. Byte code stays: the operator's root filesystem is read-only.
RUN /opt/breakeven/bin/pip install --no-deps --no-build-isolation . \
 && /opt/breakeven/bin/pip check \
 && /opt/breakeven/bin/pip uninstall --yes hatchling pathspec pluggy tomlkit trove-classifiers pip

# The same base: the environment's interpreter is a link to this one.
FROM ${BASE}
LABEL org.opencontainers.image.title="breakeven" \
      org.opencontainers.image.description="Decides whether, how and until which load a vLLM fleet should use speculative decoding" \
      org.opencontainers.image.source="https://github.com/breakeven-dev/breakeven" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/breakeven /opt/breakeven
ENV PATH=/opt/breakeven/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that runAsNonRoot can be verified; the chart fixes no user, so that OpenShift may choose another.
USER 65532:65532
ENTRYPOINT ["breakeven-operator"]
CMD ["run"]
