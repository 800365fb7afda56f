# Two images from one file:
#   docker build --target operator -t posttrain-operator .
#   docker build --target trainer --build-arg ACCELERATOR=tpu -t posttrain-trainer .     (cpu, tpu or cuda)
# The operator's has no JAX. Both run as a user without a name or rights.

ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY api api
COPY operator operator
COPY trainer trainer
COPY cli cli
COPY manifests/demo manifests/demo
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM ${PYTHON_IMAGE} AS base
# HOME is a directory that any user id may write: caches go there, nothing else does.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 HOME=/home/posttrain
RUN mkdir -p /home/posttrain && chmod 0777 /home/posttrain
WORKDIR /home/posttrain

FROM base AS operator
# /src is the build context of the wheel stage, mounted so that it leaves no layer behind.
RUN --mount=type=bind,from=wheel,source=/,target=/build \
    pip install --no-cache-dir -c /build/src/constraints.txt "$(echo /build/dist/posttrain-*.whl)[operator]"
USER 65532:65532
ENTRYPOINT ["python", "-m", "ptoperator"]

FROM base AS trainer
ARG ACCELERATOR=tpu
RUN --mount=type=bind,from=wheel,source=/,target=/build \
    case "${ACCELERATOR}" in \
      cpu|tpu|cuda) extra="trainer-${ACCELERATOR}" ;; \
      *) echo "ACCELERATOR=${ACCELERATOR}: cpu, tpu or cuda" >&2; exit 2 ;; \
    esac; \
    pip install --no-cache-dir -c /build/src/constraints.txt "$(echo /build/dist/posttrain-*.whl)[${extra}]"
USER 65532:65532
ENTRYPOINT ["python", "-m", "pttrainer"]
CMD ["--help"]
