"""One file with everything that cannot be made again, and the way back (``manage.py backup``, ``restore``)."""
