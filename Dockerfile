# An image with llama-ablate, which runs as any user and needs no network:
#
#     docker build --tag llama-ablate .
#     docker run --network none --user "$(id -u)" --volume "$PWD:/work" llama-ablate llama-ablate run experiment.yaml
#
# It has the torch that pip takes on Linux, which is CUDA's: add `--gpus all`. For a CPU alone, build with
# `--build-arg INDEX=...`, the index of torch's CPU wheels. The compiler is for `train.compile`.
ARG BASE=python:3.11-slim-bookworm
FROM $BASE
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 ablate

# Torch first, in a layer of its own: it is large, and the code changes more often.
ARG TORCH=torch==2.13.0
ARG INDEX=
RUN pip install --no-cache-dir ${INDEX:+--index-url $INDEX} $TORCH
COPY constraints.txt pyproject.toml README.md LICENSE /opt/source/
COPY llama_ablate /opt/source/llama_ablate
COPY experiments /opt/source/experiments
RUN pip install --no-cache-dir --constraint /opt/source/constraints.txt "/opt/source[ray,slurm]"

# So that any user id does, also one that /etc/passwd has not.
ENV HOME=/tmp USER=ablate PYTHONUNBUFFERED=1
USER ablate
WORKDIR /work
CMD ["llama-ablate", "--help"]
