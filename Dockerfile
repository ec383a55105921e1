# The operator's image; also the load driver's (`breakeven-operator trial`). The engine's image is the user's own.
FROM python:3.12-slim AS build
WORKDIR /src
COPY requirements/operator.lock requirements/
# --require-hashes: what the lock does not know is refused, whichever index it comes from.
RUN python -m venv /opt/breakeven && /opt/breakeven/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/operator.lock
COPY pyproject.toml README.md LICENSE ./
COPY tuner tuner
COPY operator operator
RUN /opt/breakeven/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/breakeven/bin/pip uninstall --yes hatchling pathspec pluggy trove-classifiers pip

FROM python:3.12-slim
COPY --from=build /opt/breakeven /opt/breakeven
ENV PATH=/opt/breakeven/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that runAsNonRoot can be verified; the chart fixes no user, so that OpenShift may choose another.
USER 65532:65532
ENTRYPOINT ["breakeven-operator"]
CMD ["run"]
