"""What to run first on a GPU: rows of measurements under one deadline, written to a JSON file one by one.

    python -m benchmarks.gpu_day --parts 1,2,4 --minutes 9 --out DIR

Needs Python, PyTorch, NumPy and psutil, and for each row what ``plan.py`` lists; not Ray, MLflow, Optuna, git or a
network. Texts and interactions are generated. Images are the subset of CIFAR-10 where ORCHESTRATOR_DATA has it, and
generated elsewhere.
``--dry`` runs the smallest sizes on the tests' virtual device. One GPU is used: NCCL is not run.
"""
