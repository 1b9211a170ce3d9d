# Head, workers and jobs: Ray's own image, this project on it with the versions of constraints.txt.
# docker build -f deploy/docker/ray.Dockerfile -t orchestrator-ray:0.1.0 .
# Without a GPU: --build-arg RAY_DEVICE=cpu. It changes the base alone: PyTorch with CUDA's libraries is 6.6 GB of both.
ARG RAY_VERSION=2.60.0
ARG RAY_DEVICE=gpu
FROM rayproject/ray:${RAY_VERSION}-py311-${RAY_DEVICE}

USER root
RUN install -d -o ray -g users /data /opt/orchestrator /opt/orchestrator/source /home/ray/.orchestrator /home/ray/.cache
USER 1000:100
WORKDIR /opt/orchestrator/source

# What changes seldom, gigabytes with PyTorch, is a layer of its own.
COPY --chown=1000:100 pyproject.toml constraints.txt deploy/docker/requirements.py ./
RUN python requirements.py train gpu text s3 serve > requirements.txt \
 && python -m pip install --no-cache-dir -c constraints.txt -r requirements.txt

COPY --chown=1000:100 README.md LICENSE ./
COPY --chown=1000:100 orchestrator orchestrator
COPY --chown=1000:100 workloads workloads
COPY --chown=1000:100 search_spaces search_spaces
RUN python -m pip install --no-cache-dir --no-deps .
COPY --chown=1000:100 deploy/docker/health.py /opt/orchestrator/

ENV ORCHESTRATOR_HOME=/home/ray/.orchestrator \
    ORCHESTRATOR_DATA=/data \
    ORCHESTRATOR_CACHE=/home/ray/.cache/orchestrator \
    MPLCONFIGDIR=/home/ray/.cache/matplotlib \
    MLFLOW_DISABLE_TELEMETRY=true \
    RAY_USAGE_STATS_ENABLED=0
# Not where the sources lie: what is imported is what was installed.
WORKDIR /home/ray
