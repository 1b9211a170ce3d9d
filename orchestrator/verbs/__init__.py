"""The verbs of the command line, thin: parse, call, print. Heavy imports stand inside the verbs."""
