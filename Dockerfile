# Two images from one file. `make images` builds both, tries them, and writes their bills of materials; plainly:
#   docker build --target operator -t posttrain-operator .
#   docker build --target trainer --build-arg ACCELERATOR=tpu -t posttrain-trainer .     (cpu, tpu or cuda)
# The operator's has no JAX. Both run as a user without a name or rights.
# `--secret id=pip.conf,src=FILE` lends pip a configuration (an index of your own) for the build: it stays in no layer.

# The digest is Docker's own record of this tag (docker-library/repo-info at 33a22f4). Tag and digest change together.
ARG PYTHON_DIGEST=sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76
ARG PYTHON_IMAGE=docker.io/library/python:3.11.16-slim-trixie@${PYTHON_DIGEST}

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY scripts/images/build_tools.txt ./
RUN --mount=type=secret,id=pip.conf \
    PIP_CONFIG_FILE=/run/secrets/pip.conf pip install --no-cache-dir --require-hashes -r build_tools.txt
COPY pyproject.toml README.md LICENSE constraints.txt scripts/images/installed.py ./
COPY api api
COPY kube kube
COPY operator operator
COPY trainer trainer
COPY cli cli
COPY python python
COPY manifests/demo manifests/demo
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . && cp constraints.txt installed.py /dist

FROM ${PYTHON_IMAGE} AS base
# HOME is a directory that any user id may write: caches go there, nothing else does.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 HOME=/home/posttrain
RUN mkdir -p /home/posttrain && chmod 0777 /home/posttrain
WORKDIR /home/posttrain
ARG PYTHON_IMAGE
ARG PYTHON_DIGEST
LABEL org.opencontainers.image.source=https://github.com/posttrain/posttrain \
      org.opencontainers.image.url=https://github.com/posttrain/posttrain \
      org.opencontainers.image.documentation=https://github.com/posttrain/posttrain/tree/main/docs \
      org.opencontainers.image.vendor=posttrain \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=0.1.0 \
      org.opencontainers.image.base.name=${PYTHON_IMAGE} \
      org.opencontainers.image.base.digest=${PYTHON_DIGEST}

FROM base AS operator
# Copied, not mounted: podman and buildah take a step that mounts a stage from their cache when the stage has changed.
COPY --from=wheel /dist /dist
# installed.txt: every package with the hash of the file that it came from, as pip takes it with --require-hashes.
RUN --mount=type=secret,id=pip.conf \
    PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip install --no-cache-dir --report /tmp/report.json -c /dist/constraints.txt \
      "$(echo /dist/posttrain-*.whl)[operator]" \
    && python /dist/installed.py < /tmp/report.json > /dist/installed.txt && rm /tmp/report.json
USER 65532:65532
ENTRYPOINT ["python", "-m", "ptoperator"]
# Last, because it is another one for every commit. podman and buildah take a label from their cache though its argument
# has changed, but not a command; this one does nothing.
ARG REVISION
RUN : "${REVISION}"
LABEL org.opencontainers.image.title="posttrain operator" \
      org.opencontainers.image.description="Operator for PostTrainJob: post-training of open models on GKE TPUs" \
      org.opencontainers.image.revision=${REVISION}

FROM base AS trainer
ARG ACCELERATOR=tpu
COPY --from=wheel /dist /dist
RUN --mount=type=secret,id=pip.conf \
    case "${ACCELERATOR}" in \
      cpu|tpu|cuda) extra="trainer-${ACCELERATOR},trackers" ;; \
      *) echo "ACCELERATOR=${ACCELERATOR}: cpu, tpu or cuda" >&2; exit 2 ;; \
    esac; \
    PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip install --no-cache-dir --report /tmp/report.json -c /dist/constraints.txt \
      "$(echo /dist/posttrain-*.whl)[${extra}]" \
    && python /dist/installed.py < /tmp/report.json > /dist/installed.txt && rm /tmp/report.json
USER 65532:65532
ENTRYPOINT ["python", "-m", "pttrainer"]
CMD ["--help"]
ARG REVISION
RUN : "${REVISION}"
LABEL org.opencontainers.image.title="posttrain trainer" \
      org.opencontainers.image.description="Trainer of PostTrainJob: SFT, preferences and RL in JAX" \
      org.opencontainers.image.revision=${REVISION}

# What looks into an image to write its bill of materials; it ships in none.
FROM ${PYTHON_IMAGE} AS bill-tools
COPY scripts/images/bill_tools.txt ./
RUN --mount=type=secret,id=pip.conf \
    python -m venv /bill && PIP_CONFIG_FILE=/run/secrets/pip.conf \
    /bill/bin/pip install --no-cache-dir --require-hashes -r bill_tools.txt

FROM operator AS operator-bill
COPY --from=bill-tools /bill /bill

FROM trainer AS trainer-bill
COPY --from=bill-tools /bill /bill
