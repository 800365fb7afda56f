# Two images from one file. `make images` builds both and tries them; plainly:
#   docker build --target operator -t posttrain-operator .
#   docker build --target trainer --build-arg ACCELERATOR=tpu -t posttrain-trainer .     (cpu, tpu or cuda)
# The operator's has no JAX. Both run as a user without a name or rights.
# `--secret id=pip.conf,src=FILE` lends pip a configuration (an index of your own) for the build: it stays in no layer.

ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY api api
COPY kube kube
COPY operator operator
COPY trainer trainer
COPY cli cli
COPY python python
COPY manifests/demo manifests/demo
RUN --mount=type=secret,id=pip.conf \
    PIP_CONFIG_FILE=/run/secrets/pip.conf pip wheel --no-cache-dir --no-deps --wheel-dir /dist . && cp constraints.txt /dist

FROM ${PYTHON_IMAGE} AS base
# HOME is a directory that any user id may write: caches go there, nothing else does.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 HOME=/home/posttrain
RUN mkdir -p /home/posttrain && chmod 0777 /home/posttrain
WORKDIR /home/posttrain
LABEL org.opencontainers.image.source=https://github.com/posttrain/posttrain \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=0.1.0

FROM base AS operator
# Copied, not mounted: podman and buildah take a step that mounts a stage from their cache when the stage has changed.
COPY --from=wheel /dist /dist
RUN --mount=type=secret,id=pip.conf \
    PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip install --no-cache-dir -c /dist/constraints.txt "$(echo /dist/posttrain-*.whl)[operator]"
USER 65532:65532
ENTRYPOINT ["python", "-m", "ptoperator"]
# Last, because it is another one for every commit.
ARG REVISION
LABEL org.opencontainers.image.title="posttrain operator" org.opencontainers.image.revision=${REVISION}

FROM base AS trainer
ARG ACCELERATOR=tpu
COPY --from=wheel /dist /dist
RUN --mount=type=secret,id=pip.conf \
    case "${ACCELERATOR}" in \
      cpu|tpu|cuda) extra="trainer-${ACCELERATOR},trackers" ;; \
      *) echo "ACCELERATOR=${ACCELERATOR}: cpu, tpu or cuda" >&2; exit 2 ;; \
    esac; \
    PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip install --no-cache-dir -c /dist/constraints.txt "$(echo /dist/posttrain-*.whl)[${extra}]"
USER 65532:65532
ENTRYPOINT ["python", "-m", "pttrainer"]
CMD ["--help"]
ARG REVISION
LABEL org.opencontainers.image.title="posttrain trainer" org.opencontainers.image.revision=${REVISION}
