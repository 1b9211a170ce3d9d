# MLflow with passwords, the drivers of PostgreSQL and S3 in it.
# docker build -f deploy/docker/mlflow.Dockerfile -t orchestrator-mlflow:0.1.0 .
ARG PYTHON_VERSION=3.11.14
FROM python:${PYTHON_VERSION}-slim-bookworm

RUN useradd --uid 1000 --create-home mlflow
WORKDIR /opt/mlflow
COPY constraints.txt ./
RUN python -m pip install --no-cache-dir -c constraints.txt "mlflow[auth]" psycopg2-binary boto3
COPY deploy/docker/auth.ini deploy/docker/mlflow_server.py deploy/docker/buckets.py deploy/docker/health.py ./

ENV MLFLOW_AUTH_CONFIG_PATH=/opt/mlflow/auth.ini \
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
    MLFLOW_DISABLE_TELEMETRY=true
USER 1000:1000
WORKDIR /home/mlflow
EXPOSE 5000
CMD ["python", "/opt/mlflow/mlflow_server.py"]
