"""One experiment: session, driver, worker, reports."""
