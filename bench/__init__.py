"""`make bench`: what the hot paths cost, as ratios taken within one run.

Nothing here is imported by the application, and nothing of the application is changed for it.
"""
