"""One experiment: session, driver, worker and what passes between them."""
