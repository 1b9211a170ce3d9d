"""Sequential SGD for matrix factorisation on a CPU: one triple at a time, compiled, sampler and loss in the loop."""
