"""``manage.py broker``: the one process that an operator starts. It runs the parts and keeps them running."""
