"""Programs that work inside Django on the stores of a bench: they fill them, and do what no server does."""
