"""Where runs lie: folders, checkpoints, accounts, copies on object stores."""
