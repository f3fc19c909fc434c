"""What is done inside Django on a bench's own stores: filling them, and what no server does."""
